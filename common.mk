# SPDX-License-Identifier: BSD-3-Clause
#
# Included by each Makefile.am.

# Ends each list, so that every line before it can end in a backslash.
NULL =

AM_CPPFLAGS = \
	-I$(top_srcdir)/lib \
	-I$(top_builddir)/lib \
	$(JANSSON_CFLAGS) \
	$(NULL)
AM_CFLAGS = -std=gnu11 -pthread $(WARN_CFLAGS) $(SANITIZER_CFLAGS)
AM_LDFLAGS = -pthread $(SANITIZER_CFLAGS)

# Flags for lib/, and for module tests, which include its private headers.
LIB_CFLAGS = \
	$(BLAKE3_CFLAGS) \
	$(CRYPTO_CFLAGS) \
	$(LZ4_CFLAGS) \
	$(SQLITE_CFLAGS) \
	$(XXHASH_CFLAGS) \
	$(ZSTD_CFLAGS) \
	$(NULL)

# Manual pages are POD files in the folder of the program that they describe.
POD2MAN_FLAGS = \
	--utf8 --center="nbdedup" \
	--release="$(PACKAGE_STRING)" \
	$(NULL)

# Their last sections are the same: docs/page-end.pod.
page_end = $(top_srcdir)/docs/page-end.pod
SUFFIXES = .pod .1 .5 .7
.pod.1:
	$(AM_V_GEN)cat $< $(page_end) | $(POD2MAN) $(POD2MAN_FLAGS) \
	    --section=1 --name="$$(echo $(*F) | tr a-z A-Z)" >$@-t && \
	    mv -f $@-t $@
.pod.5:
	$(AM_V_GEN)cat $< $(page_end) | $(POD2MAN) $(POD2MAN_FLAGS) \
	    --section=5 --name="$$(echo $(*F) | tr a-z A-Z)" >$@-t && \
	    mv -f $@-t $@
.pod.7:
	$(AM_V_GEN)cat $< $(page_end) | $(POD2MAN) $(POD2MAN_FLAGS) \
	    --section=7 --name="$$(echo $(*F) | tr a-z A-Z)" >$@-t && \
	    mv -f $@-t $@

# A file as a C string, e.g. static const char schema_sql[]: set name and text.
text_to_c = $(MKDIR_P) $(@D) && { echo '/* Made by make; do not edit. */' && \
	    echo "static const char $$name[] =" && \
	    $(SED) -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/.*/"&\\n"/' "$$text" && \
	    echo ';'; } > $@-t && mv -f $@-t $@
