# SPDX-License-Identifier: BSD-3-Clause
#
# The charts of "nbdedup drift", a template: a document of SVG for each chart
# of the page, or one for the picture.  drift-series.h has the columns of data;
# set_page_charts takes the documents in this order.

set encoding utf8
unset mxtics
set border 3 lc rgb '#707070'
set xlabel textcolor rgb '#707070' offset 0,0.5
set grid ytics lt 1 lw 1 lc rgb '#b0808080'
set style fill solid 1 noborder
{{#lines}}
set linetype {{n}} lw 2 lc rgb '{{color}}' dt {{dt}}
{{/lines}}
colors = "{{#palette}}{{color}} {{/palette}}"
array class[4]
{{#palette}}
class[{{n}}] = "{{label}}"
{{/palette}}
array line[3]
line[1] = "logical"
line[2] = "distinct: each content once"
line[3] = "stored: that, compressed"

# The first step that makes at most n tics; gnuplot counts 30 days as a month,
# and 365 as a year.
steps = "1 2 5 10 20 30 60 120 300 600 1200 1800 3600 7200 10800 21600 " \
      . "43200 86400 172800 345600 604800 1209600 2629800 5259600 7889400 " \
      . "15778800 31557600 63115200 126230400 252460800 504921600"
step(n) = real(word(steps, 1 + sum [i=1:words(steps)-1] \
                           (to - from > n * real(word(steps, i)))))
# Within a day its date stands below the axis; of a longer time at each tic.
clock(s) = (s < 60 ? "%H:%M:%S" : "%H:%M") \
         . (to - from > 86400 ? "\\n%1d %b" : "")
date(s) = s < 2600000 ? "%1d %b" : s < 31000000 ? "%b %Y" : "%Y"
day(t) = strftime("%1d %b %Y", t)
days(a, b) = b - a > 86400 ? "" \
           : day(a) eq day(b) ? day(b) : day(a) . " – " . day(b)
x_tics(tics, format, label) = sprintf( \
  "set xrange [%.0f:%.0f]; set xtics time %s nomirror out scale 0.5 " \
  . "format \"%s\"; set xlabel '%s';", from, to, tics, format, label)
# A history of one moment has that as its only tic.
x_axis(n) = moment ? x_tics(sprintf("%.0f, 60, %.0f", to - 43200, \
                                    to - 43190), \
                            "%1d %b %Y %H:%M", "") \
          : x_tics(sprintf("%.0f", step(n)), \
                   step(n) < 86400 ? clock(step(n)) : date(step(n)), \
                   days(from, to))

# 1, 2 or 5, times a power of ten; u is the unit that data is divided by.
# Small units have whole tics; without data there is one above zero.
ten(s) = 10.**floor(log10(s))
nice(s) = s <= 0 ? 1 : s <= ten(s) ? ten(s) : s <= 2 * ten(s) ? 2 * ten(s) \
         : s <= 5 * ten(s) ? 5 * ten(s) : 10 * ten(s)
power(b) = sum [i=1:6] (b >= 1000 * 1024.**(i - 1))
y_range(top, step, format) = \
  sprintf("set yrange [0:%.17g]; set ytics %.17g nomirror out scale 0.5; " \
          . "set format y '%%g%s';", top > 0 ? top * 1.05 : 1, \
          step, format)
y_axis(b, n) = (u = 1024.**power(b), \
  y_range(b / u, u > 1024 ? nice(b / u / n) : ceil(nice(b / u / n)), \
          " " . word("B KiB MiB GiB TiB PiB EiB", power(b) + 1)))
y_plain(top, n) = (u = 1., y_range(top, nice(1. * top / n), ""))

fleet_lines(first) = sprintf("plot for [k=%d:3] $fleet using " \
  . "1:(column(k + 7) / u) with lines lt k title line[k]", first)
# What was, what is expected, and the interval around that.
line_colors = "{{#lines}}{{color}} {{/lines}}"
ahead(block, was, color) = sprintf("plot %s using 1:($3 / u):($4 / u) with " \
  . "filledcurves lc rgb '%s' fs transparent solid 0.25 noborder, $fleet " \
  . "using 1:(%s) with lines lw 2 dt solid lc rgb '%s', %s using 1:($2 / u) " \
  . "with lines lw 2 dt (8,5) lc rgb '%s'", block, color, was, color, block, \
  color)
ratio = "plot $fleet using 1:11 with lines lt 4 notitle"
areas(block) = "plot for [k=1:4] " . block . " using " \
  . "1:((k > 1 ? sum [j=2:k] column(j) : 0) / u):" \
  . "((sum [j=2:k+1] column(j)) / u) with filledcurves " \
  . "lc rgb word(colors, k) title class[k]"

{{#page}}
charts = 0
chart(width, height) = (charts = charts + 1, \
  sprintf("set terminal svg dynamic size %d,%d name 'c%d' noenhanced " \
          . "font 'system-ui,sans-serif,12';", width, height, charts) \
  . x_axis(width / (width > 500 ? 110. : 75.)))
unset key
{{#goldens}}
from = {{from}}
to = {{to}}
moment = {{moment}}
$fleet << END
{{{series}}}
END
eval chart(360, 230)
eval y_axis({{top_logical}}, 5)
eval fleet_lines(1)
eval chart(360, 230)
eval y_axis({{top_distinct}}, 5)
eval fleet_lines(2)
eval chart(360, 230)
eval y_plain({{top_ratio}}, 5)
eval ratio
{{#drawn}}
$clone{{n}} << END
{{{series}}}
END
{{/drawn}}
eval chart(360, 230)
top = 0
{{#drawn}}{{#line}}
top = top > {{top_diverged}} ? top : {{top_diverged}}
{{/line}}{{/drawn}}
eval y_axis(top, 5)
plot NaN notitle{{#drawn}}{{#line}}, \
     $clone{{n}} using 1:(column(7) / u) with lines lw 2 dt {{dt}} lc rgb '{{color}}'{{/line}}{{/drawn}}
eval chart(980, 250)
eval y_axis({{top_held}}, 5)
eval areas("$fleet")
eval chart(440, 240)
eval y_axis({{top_held}}, 5)
eval areas("$fleet")
{{#forecast}}
$unique << END
{{{unique_lines}}}END
$ratio << END
{{{ratio_lines}}}END
now = to
to = {{ahead}}
eval chart(360, 230)
eval y_axis({{top_unique}}, 5)
eval ahead("$unique", "$5 / u", word(colors, 4))
eval chart(360, 230)
eval y_plain({{top_ahead}}, 5)
eval ahead("$ratio", "$11", word(line_colors, 4))
to = now
{{/forecast}}
{{#drawn}}
eval chart(300, 130)
eval y_axis({{top}}, 2)
eval areas("$clone{{n}}")
{{/drawn}}
{{/goldens}}
{{/page}}
{{^page}}
set terminal svg dynamic size 900,{{height}} name 'drift' noenhanced \
    font 'system-ui,sans-serif,12'
set multiplot
set lmargin at screen 0.09
set rmargin at screen 0.97

# A name that is long loses its middle, which tells least.
short(s) = strlen(s) > 48 ? s[1:24] . "…" . s[strlen(s)-23:strlen(s)] : s
screen(y) = 1 - ({{part_height}}. * (nth - 1) + y) / {{height}}.
# A title is a label, because titles are centred.
panel(title, y, top, bottom) = sprintf( \
  "set tmargin at screen %.6f; set bmargin at screen %.6f; set label 1 title " \
  . "at screen 0.09, screen %.6f left font 'sans-serif,15'; set key at " \
  . "screen 0.09, screen %.6f left center horizontal maxrows 1 Left reverse " \
  . "samplen 3 width 2;", screen(top), screen(bottom), screen(y), \
  screen(y + 30)) . x_axis(8)
{{#goldens}}
nth = {{nth}}
from = {{from}}
to = {{to}}
moment = {{moment}}
$fleet << END
{{{series}}}
END
golden = short('{{'golden}}')
title = golden . ": bytes of the image and its clones"
eval panel(title, 22, 78, 310)
eval y_axis({{top_logical}}, 5)
eval fleet_lines(1)
title = golden . ": what the clones' bytes are"
eval panel(title, 380, 436, 668)
eval y_axis({{top_held}}, 5)
eval areas("$fleet")
title = golden . ": dedup ratio"
eval panel(title, 738, 760, 844)
eval y_plain({{top_ratio}}, 3)
eval ratio
{{/goldens}}
{{^goldens}}
unset border
unset tics
unset key
set title 'no golden images' font ',15'
plot [0:1] [0:1] 2
{{/goldens}}
unset multiplot
{{/page}}
