# SPDX-License-Identifier: BSD-3-Clause
#
# How the programs are built that are tests, or that tests run.  Included by
# Makefile.am.

# Module tests may include private headers.  Tests include each other's headers
# by their path below tests/.
AM_CPPFLAGS += \
	-I$(srcdir) \
	$(LIB_CFLAGS) \
	$(LIBNBD_CFLAGS) \
	$(NBDKIT_CFLAGS) \
	$(NULL)
LDADD = \
	$(top_builddir)/lib/libnbdedup.la \
	$(JANSSON_LIBS) \
	$(NULL)

# Programs that tests run, and libraries that they preload or load into servers.
check_PROGRAMS = \
	$(module_tests) \
	bats/break-out \
	bats/drift-days \
	bats/drift-forms \
	bats/memory-load \
	bats/patch-header \
	bats/random-io \
	bats/snapshot-moment \
	bats/write-changes \
	bench/clone-costs \
	bench/ddt-scale \
	bench/drift-costs \
	bench/drift-fleet \
	bench/lock-waits \
	bench/nbd-fill \
	crash/crash-model \
	crash/lineage-crash \
	crash/plant-damage \
	crash/shrink-crash \
	faults/fault-model \
	faults/drop-table \
	faults/full-io \
	faults/full-model \
	models/drift-brute \
	rigs/engine-call \
	rigs/read-compare \
	$(NULL)

cksum_sources = \
	rigs/cksum-rig.c \
	rigs/cksum-rig.h \
	$(NULL)
modules_test_cksum_damage_SOURCES = modules/test-cksum-damage.c $(cksum_sources)
modules_test_cksum_vfs_SOURCES = modules/test-cksum-vfs.c $(cksum_sources)
modules_test_snapshot_SOURCES = modules/test-snapshot.c $(cksum_sources)
modules_test_mirror_SOURCES = modules/test-mirror.c \
	rigs/failing-reads.c rigs/failing-reads.h $(cksum_sources)

control_sources = rigs/control-rig.c rigs/control-rig.h rigs/testutil.h
modules_test_client_SOURCES = modules/test-client.c $(control_sources)
modules_test_control_SOURCES = modules/test-control.c $(control_sources)

engine_sources = rigs/engine-rig.c rigs/engine-rig.h \
	rigs/pool-util.h rigs/testutil.h
modules_test_caches_SOURCES = modules/test-caches.c $(engine_sources)
modules_test_circles_SOURCES = modules/test-circles.c $(plant_sources)
modules_test_filter_SOURCES = modules/test-filter.c $(plant_sources)
modules_test_warm_SOURCES = modules/test-warm.c $(engine_sources)
modules_test_index_SOURCES = modules/test-index.c $(plant_sources)
modules_test_index_LDADD = $(LDADD) $(SQLITE_LIBS)
modules_test_checkpoint_SOURCES = modules/test-checkpoint.c $(engine_sources)
modules_test_counters_SOURCES = modules/test-counters.c $(engine_sources)
modules_test_counts_SOURCES = modules/test-counts.c $(plant_sources)
modules_test_counts_LDADD = $(LDADD) $(SQLITE_LIBS)
modules_test_deltas_SOURCES = modules/test-deltas.c $(plant_sources)
modules_test_deltas_LDADD = $(LDADD) $(SQLITE_LIBS)
modules_test_copies_SOURCES = modules/test-copies.c $(engine_sources)
modules_test_copying_SOURCES = modules/test-copying.c $(engine_sources)
modules_test_fold_ahead_SOURCES = modules/test-fold-ahead.c $(engine_sources)
modules_test_fold_nomem_SOURCES = modules/test-fold-nomem.c $(engine_sources)
modules_test_layers_SOURCES = modules/test-layers.c $(engine_sources)
modules_test_lost_SOURCES = modules/test-lost.c $(engine_sources)
modules_test_moves_SOURCES = modules/test-moves.c $(engine_sources)
modules_test_mend_SOURCES = modules/test-mend.c $(page_sources)
modules_test_mend_tables_SOURCES = modules/test-mend-tables.c $(page_sources)
modules_test_reads_SOURCES = modules/test-reads.c $(engine_sources)
modules_test_records_SOURCES = modules/test-records.c $(engine_sources)
page_sources = rigs/page-rig.c rigs/page-rig.h $(engine_sources)
plant_sources = rigs/plants.c rigs/plants.h $(engine_sources)
crash_plant_damage_SOURCES = crash/plant-damage.c $(plant_sources)
modules_test_repair_SOURCES = modules/test-repair.c $(plant_sources)
modules_test_replay_SOURCES = modules/test-replay.c $(engine_sources)
modules_test_events_SOURCES = modules/test-events.c $(page_sources)
modules_test_events_LDADD = $(LDADD) $(SQLITE_LIBS)
modules_test_event_log_SOURCES = modules/test-event-log.c $(engine_sources)
modules_test_notes_SOURCES = modules/test-notes.c $(engine_sources)
modules_test_promise_SOURCES = modules/test-promise.c $(engine_sources)
modules_test_prune_SOURCES = modules/test-prune.c $(engine_sources)
modules_test_rewrite_SOURCES = modules/test-rewrite.c $(engine_sources)
modules_test_scrub_SOURCES = modules/test-scrub.c $(engine_sources)
modules_test_summary_SOURCES = modules/test-summary.c $(engine_sources)
modules_test_vacuum_SOURCES = modules/test-vacuum.c $(engine_sources)
modules_test_sparse_SOURCES = modules/test-sparse.c $(engine_sources)
modules_test_writes_SOURCES = modules/test-writes.c $(engine_sources)

bench_clone_costs_SOURCES = bench/clone-costs.c rigs/pool-util.h rigs/testutil.h
bench_ddt_scale_SOURCES = bench/ddt-scale.c rigs/pool-util.h rigs/testutil.h
bench_lock_waits_SOURCES = bench/lock-waits.c rigs/pool-util.h rigs/testutil.h
modules_test_clones_SOURCES = \
	modules/test-clones.c \
	rigs/pool-util.h \
	rigs/testutil.h \
	$(NULL)
modules_test_concurrent_SOURCES = \
	modules/concurrent-clones.c \
	modules/concurrent-volumes.c \
	modules/concurrent.h \
	modules/test-concurrent.c \
	rigs/testutil.h \
	$(NULL)

history_sources = \
	rigs/history-rig.c \
	rigs/history-rig.h \
	rigs/pool-util.h \
	rigs/testutil.h \
	$(NULL)
modules_test_alert_SOURCES = modules/test-alert.c $(history_sources)
modules_test_alert_LDADD = $(LDADD) $(SQLITE_LIBS)
modules_test_history_SOURCES = modules/test-history.c $(history_sources)
modules_test_history_LDADD = $(LDADD) $(SQLITE_LIBS)
modules_test_sampler_SOURCES = modules/test-sampler.c $(history_sources)
modules_test_sampler_LDADD = $(LDADD) $(SQLITE_LIBS)

modules_test_compare_SOURCES = modules/test-compare.c rigs/testutil.h
modules_test_estimate_SOURCES = modules/test-estimate.c rigs/testutil.h
modules_test_estimate_LDADD = $(LDADD) -lm

journal_sources = \
	rigs/journal-rig.c \
	rigs/journal-rig.h \
	$(NULL)
modules_test_journal_SOURCES = modules/test-journal.c $(journal_sources)
modules_test_journal_reads_SOURCES = \
	modules/test-journal-reads.c \
	$(journal_sources) \
	$(NULL)
modules_test_journal_writes_SOURCES = \
	modules/test-journal-writes.c \
	$(journal_sources) \
	$(NULL)

modules_test_model_SOURCES = \
	modules/test-model.c \
	rigs/pool-util.h \
	rigs/testutil.h \
	$(NULL)
modules_test_view_SOURCES = \
	modules/test-view.c \
	rigs/pool-util.h \
	rigs/testutil.h \
	$(NULL)
metadata_sources = \
	rigs/metadata-rig.c \
	rigs/metadata-rig.h \
	rigs/pool-util.h \
	rigs/testutil.h \
	$(NULL)
modules_test_distrust_SOURCES = modules/test-distrust.c $(metadata_sources)
modules_test_metadata_copy_SOURCES = \
	modules/test-metadata-copy.c \
	$(metadata_sources) \
	$(NULL)
modules_test_metadata_damage_SOURCES = \
	modules/test-metadata-damage.c \
	rigs/failing-reads.c \
	rigs/failing-reads.h \
	$(metadata_sources) \
	$(NULL)
modules_test_mend_LDADD = $(LDADD) $(SQLITE_LIBS)
modules_test_mend_tables_LDADD = $(LDADD) $(SQLITE_LIBS)
modules_test_metadata_damage_LDADD = $(LDADD) $(SQLITE_LIBS)
modules_test_nomem_SOURCES = \
	modules/test-nomem.c \
	rigs/pool-util.h \
	rigs/testutil.h \
	$(NULL)
modules_test_nomem_LDADD = $(LDADD) $(SQLITE_LIBS)
modules_test_references_SOURCES = \
	modules/test-references.c \
	rigs/pool-util.h \
	rigs/testutil.h \
	$(NULL)
modules_test_room_SOURCES = modules/test-room.c rigs/testutil.h
modules_test_rows_SOURCES = modules/test-rows.c rigs/testutil.h
modules_test_space_SOURCES = \
	models/space-model.c \
	models/space-model.h \
	modules/test-space.c \
	$(NULL)
modules_test_punch_SOURCES = \
	models/space-model.c \
	models/space-model.h \
	modules/test-punch.c \
	$(NULL)
modules_test_allow_SOURCES = modules/test-allow.c rigs/testutil.h
modules_test_forecast_SOURCES = modules/test-forecast.c rigs/testutil.h
modules_test_retention_SOURCES = modules/test-retention.c rigs/testutil.h

lineage_sources = \
	models/lineage-engine.c \
	models/lineage-model.c \
	models/lineage-model.h \
	models/lineage-random.c \
	models/op-log.c \
	models/op-log.h \
	rigs/testutil.h \
	$(NULL)
lineage_history_sources = \
	models/lineage-history.c \
	models/lineage-history.h \
	$(lineage_sources) \
	$(NULL)
modules_test_lineage_SOURCES = \
	modules/test-lineage.c \
	rigs/pool-util.h \
	$(lineage_history_sources) \
	$(NULL)
modules_test_drift_SOURCES = \
	models/drift-copy.c \
	models/drift-copy.h \
	models/drift-model.c \
	models/drift-model.h \
	modules/drift-compare.c \
	modules/drift-compare.h \
	modules/test-drift.c \
	$(lineage_history_sources) \
	$(NULL)
crash_lineage_crash_SOURCES = \
	crash/lineage-crash.c \
	crash/powercut-undo.c \
	crash/powercut-undo.h \
	$(lineage_sources) \
	$(NULL)
# The recorder replaces libc's functions, as it does when it is preloaded.
crash_lineage_crash_LDADD = $(crash_powercut_la_OBJECTS) $(LDADD)
crash_shrink_crash_SOURCES = \
	crash/shrink-crash.c \
	crash/powercut-undo.c \
	crash/powercut-undo.h \
	rigs/pool-util.h \
	rigs/testutil.h \
	$(NULL)
crash_shrink_crash_LDADD = $(crash_powercut_la_OBJECTS) $(LDADD)

crash_crash_model_SOURCES = \
	crash/crash-admin.c \
	crash/crash-load.c \
	crash/crash-metadata.c \
	crash/crash-model.c \
	crash/crash-model.h \
	crash/crash-power.c \
	crash/crash-repair.c \
	crash/powercut-undo.c \
	crash/powercut-undo.h \
	models/block-model.c \
	models/block-model.h \
	rigs/server-process.c \
	rigs/server-process.h \
	rigs/testutil.h \
	$(NULL)
crash_crash_model_LDADD = $(JANSSON_LIBS) $(LIBNBD_LIBS)

bats_drift_days_SOURCES = bats/drift-days.c rigs/testutil.h
bats_drift_forms_SOURCES = bats/drift-forms.c
bats_drift_forms_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/tools
bats_drift_forms_LDADD = $(top_builddir)/tools/libcommands.la $(LDADD)
modules_test_drift_view_SOURCES = modules/test-drift-view.c
modules_test_drift_view_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/tools
modules_test_drift_view_LDADD = $(top_builddir)/tools/libcommands.la $(LDADD)
modules_test_owners_SOURCES = modules/test-owners.c
modules_test_owners_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/tools
modules_test_owners_LDADD = $(top_builddir)/tools/libcommands.la $(LDADD)
# It runs where a sanitizer's run time cannot work.
bats_break_out_SOURCES = bats/break-out.c
bats_break_out_CFLAGS = -std=gnu11 $(WARN_CFLAGS)
bats_break_out_LDFLAGS =
bats_break_out_LDADD =

soak_test_soak_SOURCES = \
	rigs/server-process.c \
	rigs/server-process.h \
	rigs/testutil.h \
	soak/soak-admin.c \
	soak/soak-data.c \
	soak/soak-measure.c \
	soak/soak-model.c \
	soak/soak-transport.c \
	soak/soak.h \
	soak/test-soak.c \
	$(NULL)
soak_test_soak_LDADD = $(LDADD) $(LIBNBD_LIBS)

rigs_engine_call_SOURCES = rigs/engine-call.c rigs/testutil.h

# It shares no code with the engine, because the engine is compared with it.
models_drift_brute_SOURCES = models/drift-brute.c
models_drift_brute_LDADD = $(JANSSON_LIBS) $(CRYPTO_LIBS)

bench_drift_costs_SOURCES = \
	bench/drift-costs.c \
	rigs/server-process.c \
	rigs/server-process.h \
	rigs/testutil.h \
	$(NULL)
bench_drift_costs_LDADD = $(LIBNBD_LIBS)
bench_nbd_fill_SOURCES = bench/nbd-fill.c rigs/testutil.h
bench_nbd_fill_LDADD = $(LIBNBD_LIBS)
bench_drift_fleet_SOURCES = bench/drift-fleet.c rigs/pool-util.h rigs/testutil.h

faults_full_model_SOURCES = \
	faults/full-model.c \
	models/block-model.c \
	models/block-model.h \
	rigs/server-process.c \
	rigs/server-process.h \
	rigs/testutil.h \
	$(NULL)
faults_full_model_LDADD = $(JANSSON_LIBS) $(LIBNBD_LIBS)
faults_fault_model_SOURCES = \
	faults/fault-model.c \
	models/block-model.c \
	models/block-model.h \
	rigs/server-process.c \
	rigs/server-process.h \
	rigs/testutil.h \
	$(NULL)
faults_fault_model_LDADD = $(JANSSON_LIBS) $(LIBNBD_LIBS)

faults_drop_table_SOURCES = faults/drop-table.c rigs/pool-util.h rigs/testutil.h
faults_drop_table_LDADD = $(LDADD) $(SQLITE_LIBS)
faults_full_io_SOURCES = faults/full-io.c rigs/testutil.h
faults_full_io_LDADD = $(LIBNBD_LIBS)

bats_memory_load_SOURCES = bats/memory-load.c rigs/testutil.h
bats_memory_load_LDADD = $(LIBNBD_LIBS)

bats_patch_header_SOURCES = bats/patch-header.c rigs/testutil.h
bats_patch_header_LDADD =

bats_random_io_SOURCES = bats/random-io.c rigs/testutil.h
bats_random_io_LDADD = $(LIBNBD_LIBS)

rigs_read_compare_SOURCES = rigs/read-compare.c rigs/testutil.h
rigs_read_compare_LDADD = $(LIBNBD_LIBS)

bats_snapshot_moment_SOURCES = bats/snapshot-moment.c rigs/testutil.h
bats_snapshot_moment_LDADD = $(LIBNBD_LIBS)

bats_write_changes_SOURCES = bats/write-changes.c rigs/testutil.h
bats_write_changes_LDADD = $(LIBNBD_LIBS)

check_LTLIBRARIES = \
	rigs/faults.la \
	rigs/keep-locale.la \
	crash/lossy-plugin.la \
	crash/powercut.la \
	$(NULL)

# Without -rpath libtool makes no shared object of an uninstalled library.
preload_ldflags = $(AM_LDFLAGS) -module -avoid-version -shared -rpath /nowhere

crash_lossy_plugin_la_SOURCES = crash/lossy-plugin.c rigs/testutil.h
crash_lossy_plugin_la_LDFLAGS = $(preload_ldflags)

# These replace functions of libc, and are built without sanitizers.
rigs_faults_la_SOURCES = rigs/faults.c
rigs_faults_la_CFLAGS = $(crash_powercut_la_CFLAGS)
rigs_faults_la_LDFLAGS = $(crash_powercut_la_LDFLAGS)
rigs_faults_la_LIBADD = -ldl
rigs_keep_locale_la_SOURCES = rigs/keep-locale.c
rigs_keep_locale_la_CFLAGS = $(crash_powercut_la_CFLAGS)
rigs_keep_locale_la_LDFLAGS = $(crash_powercut_la_LDFLAGS)
crash_powercut_la_SOURCES = \
	crash/powercut-int.h \
	crash/powercut-names.c \
	crash/powercut-undo.h \
	crash/powercut.c \
	$(NULL)
crash_powercut_la_CFLAGS = -std=gnu11 -pthread $(WARN_CFLAGS)
crash_powercut_la_LDFLAGS = \
	-pthread -module -avoid-version -shared -rpath /nowhere
crash_powercut_la_LIBADD = -ldl
