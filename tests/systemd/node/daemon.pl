#!/usr/bin/perl
# A daemon of a systemd node, run by a copy of perl that carries its name: opens the device files
# named in JOB_OPEN, says so, and waits.
my @held = map { open(my $f, '+<', "/dev/$_") or die "/dev/$_: $!"; $f } split ' ', $ENV{JOB_OPEN} // '';
my ($name) = $^X =~ m{([^/]+)$};
$0 = join ' ', "/usr/bin/$name", @ARGV;
if (open my $f, '>', '/proc/self/comm') { syswrite $f, $name }
open my $ready, '>', "/run/simnode/state/ready/$$" or die $!;
close $ready;
sleep 86400 while 1;
