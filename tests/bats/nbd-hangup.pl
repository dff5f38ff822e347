#!/usr/bin/perl
# SPDX-License-Identifier: BSD-3-Clause
#
# nbd-hangup.pl SOCKET EXPORT ROUNDS
#
# An NBD client that sends many requests at once and hangs up before it reads
# the answers, as a killed client does.  Exits with 0 if the server took a new
# connection each time.

use strict;
use warnings;
use IO::Socket::UNIX;

my ($path, $name, $rounds) = @ARGV;
my $length = 65536;
$SIG{PIPE} = 'IGNORE';

sub receive {
    my ($sock, $left) = @_;
    my $data = '';
    while (length ($data) < $left) {
        my $n = sysread ($sock, $data, $left - length ($data), length ($data));
        die "the server has gone: $!\n" unless $n;
    }
    return $data;
}

for my $round (1 .. $rounds) {
    my $sock = IO::Socket::UNIX->new (Peer => $path)
        or die "round $round: connect: $!\n";

    # Greeting, client flags, NBD_OPT_GO.
    receive ($sock, 18);
    syswrite $sock, pack ('N', 3);
    syswrite $sock, 'IHAVEOPT' . pack ('NN', 7, 4 + length ($name) + 2)
        . pack ('N/a*n', $name, 0);
    while (1) {
        my (undef, undef, $type, $len) =
            unpack ('Q>NNN', receive ($sock, 20));
        receive ($sock, $len) if $len;
        last if $type == 1;
        die sprintf ("refused: 0x%x\n", $type) if $type & 0x80000000;
    }

    # Reads fill the socket with answers, so the hang-up comes amid writes.
    my $write = $round % 3 == 0;
    for my $i (0 .. 39) {
        my $request = pack ('NnnQ>Q>N', 0x25609513, 0, $write ? 1 : 0, $i,
                            $i * $length, $length);
        $request .= chr (1 + $i) x $length if $write;
        last unless syswrite $sock, $request;
    }
    select (undef, undef, undef, 0.002 * rand) if $round % 2;
    close $sock;
}
