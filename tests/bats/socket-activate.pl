#!/usr/bin/perl
# SPDX-License-Identifier: BSD-3-Clause
#
# socket-activate.pl SOCKET COMMAND...: listen on a Unix socket, and hand it
# to COMMAND as systemd does: descriptor 3, LISTEN_FDS, LISTEN_PID.

use strict;
use warnings;
use IO::Socket::UNIX;
use POSIX ();

# Descriptors up to this one survive exec.
BEGIN { $^F = 3; }

my $path = shift;
my $sock = IO::Socket::UNIX->new (Local => $path, Listen => 16)
    or die "$path: $!\n";

POSIX::dup2 (fileno ($sock), 3) or die "dup2: $!\n";
$ENV{LISTEN_FDS} = 1;
$ENV{LISTEN_PID} = $$;
exec { $ARGV[0] } @ARGV or die "$ARGV[0]: $!\n";
