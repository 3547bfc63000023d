#!/usr/bin/perl
# The first process of a simulated node: takes commands on standard input, reaps orphans, brings
# units back, notes when memory's last holder died. It ends, and the node with it, when standard
# input ends: nobody is left who could stop it. It may not look like a workload or hold a device.
#
#   spawn FILE LABEL PAD   start a scene's processes (LABEL "-": all) -> "proc LABEL PID TICKS" lines
#   sshd start|stop|freeze|thaw        kill SIGNAL PID...        clear [keep-sessions]
#   freeze PID [threads]               thaw PID                  (state D, deaf to KILL)
# Every command is answered by "done" or "error TEXT".
BEGIN { $^W = 1; $^H |= 0x602 }    # warnings and strict; their modules take 4 ms to load

my ($host_pid, $python, $arch) = @ARGV;
my $HOME  = '/run/simnode';
my $state = "$HOME/state";
my %memory;     # entry -> handle of its FIFO, at end of file when nobody holds the memory any more
my %units;      # pid -> [file, label, delay, pad]: started again by us when it ends
my @due;        # [time, file, label, delay, pad]
my %group;      # pid of a unit -> pids started with it
my %frozen;     # pid -> its folder in the freezer
my %dying;      # pid -> [seconds, time at which its frozen threads are let go, once it was killed]
my @folders;    # of the freezer, to be removed when their last task is gone
my $sshd = 0;

$0 = '/sbin/init';
if (open my $comm, '>', '/proc/self/comm') { print $comm 'init'; close $comm }
pipe(my $wake_r, my $wake_w) or die "pipe: $!";
fcntl($_, 4, 2048) for $wake_r, $wake_w;    # F_SETFL, O_NONBLOCK
$SIG{CHLD} = $SIG{USR1} = sub { syswrite $wake_w, 'x' };
$SIG{PIPE} = 'IGNORE';
$| = 1;

sub uptime { open my $f, '<', '/proc/uptime' or die $!; return (split ' ', <$f>)[0] }

sub slurp { open my $f, '<', $_[0] or return ''; local $/; return scalar(<$f>) // '' }

sub note { open my $f, '>', $_[0] or return; syswrite $f, $_[1] }

sub entries {
    my ($folder) = @_;
    opendir my $d, $folder or return;
    return grep { !/^\./ } readdir $d;
}

sub pids { return grep { /^\d+$/ } entries('/proc') }

# "Nobody holds it": kept under its time of death, for memory that lags behind its holder.
sub bury {
    my ($entry) = @_;
    close delete $memory{$entry};
    my $now = uptime();
    if (open my $f, '>', "$state/dead/$entry.new") { print $f "$now\n"; close $f }
    rename "$state/dead/$entry.new", "$state/dead/$entry";
    unlink "$state/memory/$entry";
}

sub watch_memory {
    for my $entry (entries("$state/memory")) {
        next if $memory{$entry};
        sysopen(my $fifo, "$state/memory/$entry", 2048) or next;    # O_RDONLY | O_NONBLOCK
        $memory{$entry} = $fifo;
    }
    for my $entry (keys %memory) {
        my $got = sysread $memory{$entry}, my $bytes, 16;
        bury($entry) if defined $got && $got == 0;
    }
}

sub run_child {
    my (@command) = @_;
    my $pid = fork;
    die "fork: $!" unless defined $pid;
    return $pid if $pid;
    $SIG{$_} = 'DEFAULT' for qw(CHLD USR1 PIPE);
    open STDIN,  '<', '/dev/null';
    open STDOUT, '>', '/dev/null';
    open STDERR, '>>', "$state/node.log";
    exec { $command[0] } @command or exit 127;
}

# Only version 1 of the freezer stops a task so that KILL has to wait. Mounted in here, the host sees
# no mount; the folder is ours to remove.
sub freeze {
    my ($pid, $what) = @_;
    my $root = "$HOME/freezer";
    if (!-d $root) {
        mkdir $root;
        system('mount', '-t', 'cgroup', '-o', 'freezer', 'cgroup', $root) == 0
            or die "no version 1 freezer on this machine\n";
    }
    my $folder = $frozen{$pid} = "$root/simnode-$host_pid-$pid";
    -d $folder or mkdir $folder or die "freezer: $!\n";
    for my $task (entries("/proc/$pid/task")) {
        note("$folder/tasks", $task) if ($what // '') ne 'threads' || $task != $pid;
    }
    note("$folder/freezer.state", 'FROZEN');
    return 'done';
}

sub thaw {
    my ($pid) = @_;
    my $folder = delete $frozen{$pid} or return 'error it is not frozen';
    delete $dying{$pid};
    note("$folder/freezer.state", 'THAWED');
    for my $task (split ' ', slurp("$folder/tasks")) { note("$HOME/freezer/tasks", $task) }
    rmdir $folder or push @folders, $folder;
    return 'done';
}

# A process that is to die slowly: its leader is a zombie at once, its threads are let go later.
sub let_die {
    for my $pid (keys %dying) {
        my $death = $dying{$pid};
        if (defined $death->[1]) { thaw($pid) if uptime() >= $death->[1] }
        elsif (slurp("/proc/$pid/stat") !~ /\) [^ZX]/) { $death->[1] = uptime() + $death->[0] }
    }
}

sub thaw_all { thaw($_) for keys %frozen }

# Runs the scene's builder to its end; it answers with one line for each process it left running.
sub spawn {
    my ($file, $label, $pad) = @_;
    pipe(my $r, my $w) or die "pipe: $!";
    my $pid = fork;
    die "fork: $!" unless defined $pid;
    if (!$pid) {
        $SIG{$_} = 'DEFAULT' for qw(CHLD USR1 PIPE);
        open STDIN,  '<', '/dev/null';
        open STDOUT, '>&', $w;
        open STDERR, '>>', "$state/node.log";
        exec $python, '-I', '-S', "$HOME/programs/node/enter.py", 'seed', $file, $label, $arch, 'x' x $pad
            or exit 127;
    }
    close $w;
    my (@lines, $answer, $root);
    while (my $line = <$r>) {
        chomp $line;
        if ($line =~ /^proc (\S+) (\d+) (\d+) (\d+) (\S+) (\S+)$/) {
            my ($name, $born, $ticks, $root, $delay, $seconds) = ($1, $2, $3, $4, $5, $6);
            push @lines, "proc $name $born $ticks";
            $group{$root}{$born} = 1;
            $units{$born} = [$file, $name, $delay, $pad] if $delay ne '-';
            if ($seconds > 0) { freeze($born, 'threads'); $dying{$born} = [$seconds] }
        }
        else { $answer = $line }
    }
    close $r;
    waitpid $pid, 0;
    watch_memory();
    $answer //= 'error the scene ended without an answer: see node.log';
    return (@lines, $answer);
}

sub reap {
    while ((my $pid = waitpid -1, 1) > 0) {
        $sshd = 0 if $pid == $sshd;
        my $unit = delete $units{$pid} or next;
        my ($file, $label, $delay, $pad) = @$unit;
        kill 'KILL', grep { $_ != $pid } keys %{ delete $group{$pid} || {} };
        push @due, [uptime() + $delay, $file, $label, $delay, $pad];
    }
}

sub restart_due {
    my $now = uptime();
    my @ready = grep { $_->[0] <= $now } @due or return;
    @due = grep { $_->[0] > $now } @due;
    spawn(@{$_}[1, 2, 4]) for @ready;
}

sub of_sshd {
    my ($pid) = @_;
    while ($pid > 1) {
        return 1 if $pid == $sshd;
        open my $f, '<', "/proc/$pid/stat" or return 0;
        my $line = <$f> // '';
        $pid = $line =~ /^.*\) \S (\d+)/s ? $1 : 0;
    }
    return 0;
}

sub clear {
    my ($keep_sessions) = @_;
    %units = ();
    @due = ();
    thaw_all();
    my $until = uptime() + 10;
    while (uptime() < $until) {
        my @rest = grep { $_ != 1 && $_ != $sshd && !($keep_sessions && of_sshd($_)) } pids();
        if (!@rest) {
            for my $folder (qw(memory dead signals scenes)) {
                unlink "$state/$folder/$_" for entries("$state/$folder");
            }
            close $_ for values %memory;
            %memory = %group = ();
            return 'done';
        }
        kill 'KILL', @rest;
        select undef, undef, undef, 0.005;
        1 while waitpid(-1, 1) > 0;
    }
    return 'error some processes do not end';
}

sub control_sshd {
    my ($what) = @_;
    if ($what eq 'start') {
        $sshd ||= run_child('/usr/sbin/sshd', '-D', '-f', "$state/sshd_config",
                            '-E', "$state/sshd.log");
        return 'done';
    }
    return 'error sshd does not run' if !$sshd;
    kill { stop => 'KILL', freeze => 'STOP', thaw => 'CONT' }->{$what}, $sshd;
    if ($what eq 'stop') { waitpid $sshd, 0; $sshd = 0 }
    return 'done';
}

sub obey {
    my ($verb, @rest) = split ' ', $_[0];
    return spawn(@rest) if $verb eq 'spawn';
    return control_sshd(@rest) if $verb eq 'sshd';
    return clear(@rest) if $verb eq 'clear';
    return freeze(@rest) if $verb eq 'freeze';
    return thaw(@rest) if $verb eq 'thaw';
    if ($verb eq 'kill') { kill @rest; return 'done' }
    return "error unknown command $verb";
}

# The kernel ends all the others with us, but waits for ever for one that is frozen.
sub finish {
    thaw_all();
    kill 'KILL', -1;
    if (@folders) {
        1 while waitpid(-1, 0) > 0;
        rmdir $_ for @folders;
    }
    exit 0;
}

print "ready $host_pid\n";
my $input = '';
while (1) {
    my $bits = '';
    vec($bits, fileno $_, 1) = 1 for \*STDIN, $wake_r, values %memory;
    my $timeout;
    if (@due) {
        ($timeout) = sort { $a <=> $b } map { $_->[0] - uptime() } @due;
        $timeout = 0.001 if $timeout < 0.001;
    }
    $timeout = 0.05 if %dying && (!defined $timeout || $timeout > 0.05);
    my $ready = select $bits, undef, undef, $timeout;
    1 while sysread $wake_r, my $junk, 4096;
    reap();
    watch_memory();
    restart_due() if @due;
    let_die() if %dying;
    @folders = grep { !rmdir $_ } @folders if @folders;
    next if $ready <= 0 || !vec($bits, fileno STDIN, 1);
    my $got = sysread STDIN, $input, 65536, length $input;
    finish() if !$got;
    while ($input =~ s/^(.*)\n//) {
        my @answer = eval { obey($1) };
        @answer = ('error ' . ($@ =~ s/\n.*//sr)) if $@;
        print "$_\n" for @answer;
    }
}
