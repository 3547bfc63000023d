#!/usr/bin/perl
# A process of a scene that isn't Python: runs under a copy of perl that carries the program's file
# name, takes the wanted command line and name, then waits. It may not do any work or print.
BEGIN { $^W = 1; $^H |= 0x602 }    # warnings and strict; their modules take 4 ms to load

my ($spec) = @ARGV;
my ($ready, $label, $title, $comm, $uid, $gid, $term, $maps, $signals, $prctl, $brk, $mmap)
    = split /,/, $spec;
$_ = pack 'H*', $_ for $title, $comm;
$_ += 0 for $prctl, $brk, $mmap;    # syscall() takes what was never a number for a pointer
$SIG{CHLD} = 'IGNORE';
my $signal_log;
if (open my $log, '>', $signals) { $signal_log = $log }

# PR_SET_MM_MAP: needs no privilege and ends the command line where the wanted one ends.
sub retitle {
    open my $stat, '<', '/proc/self/stat' or die $!;
    my @f = split ' ', (<$stat> =~ s/^.*\) //sr);
    my ($start, $end) = @f[45, 46];
    my $text = substr $title, 0, $end - $start;
    open my $mem, '+<:raw', '/proc/self/mem' or die $!;
    sysseek $mem, $start, 0;
    syswrite $mem, $text . ("\0" x ($end - $start - length $text));
    my $map = pack 'Q11QLL', @f[23, 24, 42, 43, 44], syscall($brk, 0), $f[25], $start,
        $start + length $text, @f[47, 48], 0, 0, 0xffffffff;
    syscall $prctl, 35, 14, $map, length $map, 0;
}

if ($maps) {
    for my $fd (split /:/, $maps) { syscall $mmap, 0, 4096, 1, 2, $fd + 0, 0 }
}
retitle();
if (open my $f, '>', '/proc/self/comm') { syswrite $f, $comm }
if ($uid) {
    $) = "$gid $gid";
    $( = $gid;
    ($<, $>) = ($uid, $uid);
    syscall $prctl, 4, 1, 0, 0, 0;    # dumpable, or /proc/PID/fd would be root's
}

my $die_at;
for my $name (qw(TERM HUP INT)) {
    $SIG{$name} = sub {
        syswrite $signal_log, "$name\n" if $signal_log;
        return if $name eq 'TERM' && $term eq 'ignore';
        if ($name eq 'TERM' && $term ne 'die') { $die_at //= time + $term; return }
        $SIG{$name} = 'DEFAULT';
        kill $name, $$;
    };
}
open my $report, '>&=', $ready or die $!;
syswrite $report, "$label $$\n";
close $report;
while (1) {
    select undef, undef, undef, defined $die_at ? 0.1 : 86400;
    exit 143 if defined $die_at && time >= $die_at;
}
