/* SPDX-License-Identifier: BSD-3-Clause */

#include <config.h>

#include <stdio.h>

#include "drift-chart.h"
#include "drift-html.h"
#include "tools.h"

/* Nothing is loaded, and nothing runs: not even if a name got through. */
static const char head[] =
  "<!DOCTYPE html>\n"
  "<html lang=\"en\">\n"
  "<head>\n"
  "<meta charset=\"utf-8\">\n"
  "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
  "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
  "form-action 'none'\">\n"
  "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
  "<meta name=\"color-scheme\" content=\"light dark\">\n"
  "<meta name=\"generator\" content=\"" PACKAGE_STRING "\">\n"
  "<link rel=\"icon\" href=\"data:,\">\n"
  "<title>Drift of golden images</title>\n";

/* Narrower, the table's figures would not fit beside each other. */
#define TABLE_MIN_WIDTH "68rem"

static const char style[] =
  ":root{color-scheme:light dark;--fg:#1b1f24;--dim:#5b6570;--bg:#fff;"
  "--card:#f6f7f9;--line:#d9dde2}\n"
  "@media(prefers-color-scheme:dark){:root{--fg:#e6e9ed;--dim:#9aa5b1;"
  "--bg:#14171b;--card:#1d2127;--line:#343b44}}\n"
  "*{box-sizing:border-box}\n"
  "body{margin:0 auto;max-width:74rem;padding:1.5rem;background:var(--bg);"
  "color:var(--fg);font:15px/1.5 system-ui,-apple-system,\"Segoe UI\","
  "\"DejaVu Sans\",sans-serif}\n"
  "h1{font-size:1.5rem;margin:0}\n"
  "h2{font-size:1.3rem;margin:0 0 .2rem;overflow-wrap:anywhere}\n"
  "h3{font-size:1rem;margin:2rem 0 .5rem}\n"
  "p{margin:.3rem 0}\n"
  ".dim,figcaption small,dd{color:var(--dim)}\n"
  "nav ul{display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;list-style:none;"
  "padding:0;margin:.8rem 0}\n"
  "a{color:inherit}\n"
  "section{border-top:2px solid var(--line);margin-top:1.6rem;"
  "padding-top:1.2rem}\n"
  ".tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(9rem,1fr));"
  "gap:.7rem;margin:1rem 0;padding:0}\n"
  ".tiles div{background:var(--card);border-radius:6px;padding:.6rem .9rem}\n"
  ".tiles dt{color:var(--dim);font-size:.85rem}\n"
  ".tiles dd{margin:0;color:var(--fg);font-size:1.45rem;"
  "font-variant-numeric:tabular-nums}\n"
  ".bar{display:flex;height:.8rem;border-radius:3px;overflow:hidden;"
  "background:var(--line);min-width:8rem}\n"
  ".bar i{display:block;height:100%}\n"
  ".bar.big{height:1.4rem}\n"
  ".legend{display:flex;flex-wrap:wrap;gap:.1rem 1.3rem;margin:.4rem 0;"
  "padding:0;list-style:none;font-size:.9rem}\n"
  ".key{display:inline-block;width:.8em;height:.8em;border-radius:2px;"
  "margin-right:.45em}\n"
  ".key.line{height:.22em;vertical-align:middle;width:1.2em}\n"
  ".key.dash{height:0;background:none;border-top:.2em dashed}\n"
  "figure{margin:0;min-width:0}\n"
  "figcaption{font-weight:600;overflow-wrap:anywhere}\n"
  "figcaption small{font-weight:400;margin-left:.5em;"
  "font-variant-numeric:tabular-nums}\n"
  "svg{display:block;width:100%;height:auto}\n"
  "svg text{fill:var(--fg)}\n"
  ".three{display:grid;grid-template-columns:repeat(auto-fit,"
  "minmax(18rem,1fr));gap:1rem 1.4rem}\n"
  ".small{display:grid;grid-template-columns:"
  "repeat(auto-fill,minmax(17rem,1fr));gap:1rem 1.4rem;margin-top:.6rem}\n"
  "details{margin-top:1rem}\n"
  "summary{cursor:pointer;font-weight:600}\n"
  ".scroll{overflow-x:auto}\n"
  "table{border-collapse:collapse;width:100%;font-size:.9rem;"
  "font-variant-numeric:tabular-nums}\n"
  "th,td{padding:.28rem .55rem;text-align:right;white-space:nowrap;"
  "border-bottom:1px solid var(--line)}\n"
  "th{color:var(--dim);font-weight:600;vertical-align:bottom}\n"
  "th:first-child,td:first-child{text-align:left;padding-left:0}\n"
  /* A long name is broken, so that the figures stay in sight. */
  "tbody th,tfoot th{color:var(--fg);white-space:normal;"
  "overflow-wrap:anywhere;min-width:7rem}\n"
  "th:nth-child(2){text-align:left}\n"
  "td small{color:var(--dim);display:inline-block;min-width:3.2em}\n"
  "tfoot th,tfoot td{border-bottom:0;font-weight:600;color:var(--fg)}\n"
  "svg.narrow{display:none}\n"
  "dl.classes{display:grid;grid-template-columns:max-content 1fr;"
  "gap:.3rem 1.2rem}\n"
  "dl.classes dt{font-weight:600}dl.classes dd{margin:0}\n"
  "@media screen and (max-width:46rem){dl.classes{grid-template-columns:1fr}"
  "svg.wide{display:none}svg.narrow{display:block}}\n"
  /* Where the table has no room, each clone gets a part of its own. */
  "@media screen and (max-width:" TABLE_MIN_WIDTH "){"
  "table,tbody,tfoot,tr,tbody th,tfoot th,td{display:block}"
  "thead{position:absolute;width:1px;height:1px;overflow:hidden;"
  "clip-path:inset(50%)}"
  "tbody tr,tfoot tr{display:grid;padding:.6rem 0;gap:.3rem .6rem;"
  "grid-template-columns:repeat(auto-fill,minmax(6.8rem,1fr));"
  "border-bottom:1px solid var(--line)}"
  "tbody th,tfoot th,td:nth-child(2){grid-column:1/-1}"
  "tbody th,tfoot th,td{border:0;padding:0;text-align:left}"
  "td::before{display:block;color:var(--dim);font-size:.8rem;"
  "font-weight:400}}\n"
  "@media print{body{max-width:none;padding:0;font-size:11px}"
  ".bar,.bar i,.key,.tiles div{print-color-adjust:exact;"
  "-webkit-print-color-adjust:exact}figure,tr{break-inside:avoid}"
  "h2,h3{break-after:avoid}"
  "nav{display:none}.tiles{grid-template-columns:repeat(5,1fr);gap:.4rem}"
  ".tiles dd{font-size:1.1rem}.legend{font-size:10px}"
  ".three,.small{grid-template-columns:repeat(3,1fr)}"
  ".scroll{overflow:visible}table{font-size:10px}"
  "th,td{padding:.2rem .3rem}tbody th,tfoot th{min-width:5rem}"
  ".bar{min-width:4.5rem}}\n";

/* The heads of the table's columns, for rows that do not stand below them. */
static void
write_column_labels (FILE *fp)
{
  unsigned i;

  fprintf (fp, "@media screen and (max-width:" TABLE_MIN_WIDTH "){");
  for (i = PAGE_FIGURES; i < PAGE_COLUMNS; ++i)
    fprintf (fp, "td:nth-child(%u)::before{content:\"%s\"}", i + 1,
             page_columns[i]);
  fprintf (fp, "}\n");
}

void
page_text (FILE *fp, const char *text)
{
  for (; *text != '\0'; ++text)
    switch (*text) {
    case '&':
      fputs ("&amp;", fp);
      break;
    case '<':
      fputs ("&lt;", fp);
      break;
    case '>':
      fputs ("&gt;", fp);
      break;
    case '"':
      fputs ("&quot;", fp);
      break;
    case '\'':
      fputs ("&#39;", fp);
      break;
    default:
      putc (*text, fp);
    }
}

void
page_begin (FILE *fp, const json_t *histories)
{
  const size_t nr = json_array_size (histories);
  const json_t *history;
  size_t i;

  fprintf (fp, "%s<style>\n%s", head, style);
  write_column_labels (fp);
  fprintf (fp, "</style>\n</head>\n<body>\n<header>\n"
           "<h1>Drift of golden images and their clones</h1>\n");
  if (nr == 0)
    fprintf (fp, "<p>There are no golden images: no volume is a clone of a "
             "snapshot.</p>\n");
  fprintf (fp, "</header>\n");
  if (nr > 1) {
    fprintf (fp, "<nav aria-label=\"Golden images\"><ul>\n");
    json_array_foreach (histories, i, history) {
      fprintf (fp, "<li><a href=\"#g%zu\">", i + 1);
      page_text (fp, json_text (json_array_get (history, 0), "golden"));
      fprintf (fp, "</a></li>\n");
    }
    fprintf (fp, "</ul></nav>\n");
  }
  fprintf (fp, "<main>\n");
}

void
page_line_legend (FILE *fp, unsigned first)
{
  unsigned i;

  fprintf (fp, "<ul class=\"legend\">\n");
  for (i = first; i < NR_LINES; ++i)
    fprintf (fp, "<li><span class=\"key line%s\" style=\"%s:%s\"></span>"
             "%s</li>\n", chart_lines[i].dashed ? " dash" : "",
             chart_lines[i].dashed ? "border-color" : "background",
             chart_lines[i].color, chart_lines[i].label);
  fprintf (fp, "</ul>\n");
}

void
page_class_legend (FILE *fp)
{
  unsigned i;

  fprintf (fp, "<ul class=\"legend\">\n");
  for (i = NR_CLASSES; i-- > 0; )
    fprintf (fp, "<li><span class=\"key\" style=\"background:%s\"></span>"
             "%s</li>\n", drift_classes[i].color, drift_classes[i].label);
  fprintf (fp, "</ul>\n");
}

/* What the words mean, as the contract has them. */
static const struct {
  int class;                    /* -1: none of those that are drawn */
  const char *name, *meaning;
} meanings[] = {
  { CLASS_GOLDEN_SAME, "as in the golden image",
    "The block has the content that the golden image has at the same place." },
  { CLASS_GOLDEN_MOVED, "in the golden image, elsewhere",
    "The golden image has this content, but at another place. It costs "
    "nothing either." },
  { CLASS_SIBLING, "only among siblings",
    "The golden image does not have this content, but at least one other "
    "clone has: the same update, installed on several machines. It is stored "
    "once for all of them; a newer golden image would take it over." },
  { CLASS_UNIQUE, "unique",
    "No other clone has it, nor the golden image. This is what a clone "
    "really costs." },
  { -1, "zero", "Holes, and blocks of zeroes. They are stored nowhere, and in "
    "no other figure." },
  { -1, "logical, distinct, stored",
    "The golden image and its clones as their users see them; each content "
    "counted once; the same after compression, in sectors on the disk." },
  { -1, "only here", "What destroying this clone alone would give back, "
    "compressed. What two clones share comes back when both are gone." },
  { -1, "dedup ratio", "Logical by distinct. It is no measure of what is "
    "saved: deleting well shared data frees bytes and lowers it." },
};

void
page_end (FILE *fp)
{
  size_t i;

  fprintf (fp, "<section aria-labelledby=\"words\">\n"
           "<h2 id=\"words\">What the words mean</h2>\n"
           "<p>Every block of a clone is exactly one of five: as in the golden "
           "image, moved within it, only among siblings, unique, or zero. "
           "Contents are compared, not their history.</p>\n"
           "<dl class=\"classes\">\n");
  for (i = 0; i < sizeof meanings / sizeof meanings[0]; ++i) {
    fprintf (fp, "<dt>");
    if (meanings[i].class >= 0)
      fprintf (fp, "<span class=\"key\" style=\"background:%s\"></span>",
               drift_classes[meanings[i].class].color);
    fprintf (fp, "%s</dt><dd>%s</dd>\n", meanings[i].name,
             meanings[i].meaning);
  }
  fprintf (fp, "</dl>\n</section>\n</main>\n</body>\n</html>\n");
}
