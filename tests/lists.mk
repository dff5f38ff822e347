# SPDX-License-Identifier: BSD-3-Clause
#
# Which tests there are, and when each of them runs.  Included by Makefile.am.
#
# README.md describes the rooms, and where a new test goes.  A program is built
# in the room of its source: modules/test-hash.

# Module tests: plain C programs, exit 0 passed, 77 skipped.  The long ones come
# first, here and below, so that with make -j no core waits for the last one.
# These go through all pages, requests or damage, one after the other, in one
# thread of clients, so TSan, which takes minutes for each, has little to find:
#   make -C build-tsan check TESTS='$(sweep_module_tests)'
sweep_module_tests = \
	modules/test-nomem \
	modules/test-mend-tables \
	modules/test-mend \
	modules/test-metadata-damage \
	modules/test-dirty-memory \
	modules/test-distrust \
	modules/test-cksum-damage \
	modules/test-cksum-vfs \
	$(NULL)
short_module_tests = \
	modules/test-drift \
	modules/test-background \
	modules/test-caches \
	modules/test-filter \
	modules/test-warm \
	modules/test-index \
	modules/test-checkpoint \
	modules/test-circles \
	modules/test-client \
	modules/test-clones \
	modules/test-concurrent \
	modules/test-compare \
	modules/test-cond \
	modules/test-control \
	modules/test-copies \
	modules/test-copying \
	modules/test-counters \
	modules/test-counts \
	modules/test-deltas \
	modules/test-drift-looks \
	modules/test-estimate \
	modules/test-event \
	modules/test-event-log \
	modules/test-events \
	modules/test-fold-ahead \
	modules/test-fold-nomem \
	modules/test-frozen \
	modules/test-giveway \
	modules/test-hash \
	modules/test-advise \
	modules/test-alert \
	modules/test-history \
	modules/test-journal-writes \
	modules/test-layers \
	modules/test-lineage \
	modules/test-lockfile \
	modules/test-lost \
	modules/test-metadata-copy \
	modules/test-mirror \
	modules/test-model \
	modules/test-moves \
	modules/test-view \
	modules/test-notes \
	modules/test-promise \
	modules/test-prune \
	modules/test-punch \
	modules/test-reads \
	modules/test-records \
	modules/test-references \
	modules/test-repair \
	modules/test-rewrite \
	modules/test-replay \
	modules/test-sampler \
	modules/test-scrub \
	modules/test-shrink \
	modules/test-snapshot \
	soak/test-soak \
	modules/test-space \
	modules/test-store \
	modules/test-summary \
	modules/test-vacuum \
	modules/test-record-join \
	modules/test-sparse \
	modules/test-writes \
	$(NULL)
# These have one thread, so TSan has nothing to check.
threadless_module_tests = \
	modules/test-allow \
	modules/test-codec \
	modules/test-hashtable \
	modules/test-journal \
	modules/test-journal-reads \
	modules/test-log \
	modules/test-drift-view \
	modules/test-owners \
	modules/test-room \
	modules/test-rows \
	modules/test-segment \
	modules/test-sorter \
	modules/test-forecast \
	modules/test-retention \
	modules/test-xxh3 \
	$(NULL)
module_tests = $(sweep_module_tests) $(short_module_tests) $(threadless_module_tests)

# Behaviour, as a user sees it: each @test is one result.
long_bats_tests = \
	faults/fault.bats \
	crash/crash.bats \
	bats/format.bats \
	bats/scrub.bats \
	bats/badinput.bats \
	bats/golden.bats \
	bats/drift.bats \
	bats/serve.bats \
	bats/tools.bats \
	$(NULL)
short_bats_tests = \
	bats/plugin.bats \
	faults/damage.bats \
	bats/drift-tool.bats \
	bats/estimate.bats \
	bats/import.bats \
	soak/soak.bats \
	bats/control.bats \
	bats/dedup.bats \
	bats/golden-serve.bats \
	bats/hash.bats \
	bats/history.bats \
	bats/monitoring.bats \
	bats/prune.bats \
	bats/quit.bats \
	bats/random-io.bats \
	bats/readonly.bats \
	bats/repair.bats \
	bats/resize.bats \
	bats/status.bats \
	bats/systemd.bats \
	$(NULL)
# "make check" has no time for these.  They have a step of .ci/run, there with
# sanitizers, and "make check-long" runs them without.
landing_bats_tests = \
	faults/sweep.bats \
	bats/compact.bats \
	bats/copies.bats \
	bats/drift-advise.bats \
	bats/drift-ahead.bats \
	bats/drift-block-size.bats \
	bats/drift-files.bats \
	bats/drift-inherited.bats \
	bats/drift-stop.bats \
	bats/events.bats \
	bats/filters.bats \
	bats/mistakes.bats \
	bats/rewrite.bats \
	bats/spoilt-files.bats \
	bats/top.bats \
	bats/untrusted.bats \
	bats/warm.bats \
	$(NULL)
# Sanitizers have nothing to check here: the text of the source, of manual pages
# and of --help; scripts, some of which run tests; a program that tests compare
# with; the memory of a server without a sanitizer.
plain_bats_tests = \
	bats/memory.bats \
	bats/provision.bats \
	source/chroot.bats \
	source/source.bats \
	bats/help.bats \
	bats/readme.bats \
	models/drift-brute.bats \
	source/advice.bats \
	$(NULL)
# Nor here, and "make check" has no time for them either: guests; a browser, with
# pages that drift-tool.bats also makes, with the dashboard, and with the site;
# commands of documents, which other tests run in other ways; the completion in
# shells; programs that measure; a test of crash-model.  .ci/run runs them, by
# "make check-landing".
landing_plain_tests = \
	vm/clones.bats \
	bats/examples.bats \
	bats/drift-page.bats \
	vm/restarts.bats \
	vm/libvirt.bats \
	vm/drift.bats \
	vm/night-job.bats \
	bench/bench.bats \
	bats/site.bats \
	bats/dashboard.bats \
	bats/completion.bats \
	crash/lie.bats \
	$(NULL)
check_bats_tests = $(long_bats_tests) $(short_bats_tests) $(plain_bats_tests)
landing_tests = $(landing_plain_tests) $(landing_bats_tests)

# Files that these tests load or run.
test_scripts = \
	bats/check-site.py \
	bats/badinput.bash \
	bats/dashboard/board.py \
	bats/dashboard/data.py \
	bats/dashboard/draw.py \
	bats/dashboard/history.py \
	bats/dashboard/look.py \
	bats/dashboard/render.py \
	bats/dashboard/units.py \
	bats/drift-fixture.py \
	bats/drift-fleet.bash \
	bats/fake-journald.py \
	bats/examples.bash \
	bats/examples.py \
	bats/machine.bash \
	bats/monitoring.py \
	bats/manager.py \
	bats/mutate-image.py \
	bats/nbd-hangup.pl \
	bats/open-page.py \
	bats/socket-activate.pl \
	bats/type-tab.py \
	bench/bench-ddt \
	bench/bench-estimate.py \
	bench/bench-fill \
	bench/bench-page.py \
	bench/bench.py \
	bench/bench_fio.py \
	bench/bench_images.py \
	bench/bench_lines.py \
	bench/bench_machine.py \
	bench/bench_plots.py \
	bench/bench_results.py \
	bench/bench_servers.py \
	bench/bench_sizing.py \
	bench/bench_why.py \
	crash/crash.bash \
	faults/damage_kinds.py \
	faults/damage_pools.py \
	faults/fault_scenarios.py \
	faults/fault.bash \
	faults/full-disk.bash \
	faults/nbd_client.py \
	models/drift.bash \
	models/format-reader.py \
	models/format_database.py \
	models/format_digest.py \
	models/format_rows.py \
	models/ratios.py \
	rigs/clients.bash \
	rigs/files.bash \
	rigs/helpers.bash \
	rigs/in-memory \
	rigs/own-mounts \
	rigs/time-limit \
	source/advice.py \
	source/source-rules.py \
	vm/drift-fleet.bash \
	vm/guest.bash \
	vm/image \
	vm/quick-boot \
	$(NULL)

# Slow, or with images, QEMU, nbd-client: only with "make check-vm".
vm_tests = \
	vm/guest.bats \
	vm/image.bats \
	vm/guest-nbd.bats \
	vm/ntfs.bats \
	vm/kernel-nbd.bats \
	vm/nbdfuse.bats \
	$(NULL)

# Only with "make check-long" or "tests/run --all": the full length of what other
# files do for a shorter time, and guests that need an image of their own.
long_tests = \
	crash/crash-long.bats \
	vm/cloud-init.bats \
	vm/libguestfs.bats \
	vm/provision.bats \
	vm/systemd.bats \
	modules/sweeps-long.bats \
	bats/again-long.bats \
	bats/drift-long.bats \
	faults/damage-long.bats \
	vm/boot.bats \
	vm/drift-long.bats \
	$(NULL)

# What another release of Debian, with its versions of nbdkit, libnbd, QEMU's
# tools, SQLite and the compiler, is likely to change: .ci/run runs these on the
# other one ("tests/run --platform").
platform_tests = \
	crash/crash.bats \
	faults/damage.bats \
	bats/drift-block-size.bats \
	bats/filters.bats \
	bats/golden-serve.bats \
	bats/golden.bats \
	bats/plugin.bats \
	bats/quit.bats \
	bats/random-io.bats \
	bats/serve.bats \
	$(NULL)
platform_programs = \
	bats/random-io \
	bats/snapshot-moment \
	bats/write-changes \
	crash/crash-model \
	crash/lineage-crash \
	crash/plant-damage \
	crash/shrink-crash \
	rigs/read-compare \
	$(NULL)
platform_libraries = crash/lossy-plugin.la crash/powercut.la
