# Runs one unit of Redis's own test suite against a server that listens already:
#
#     tclsh unit.tcl UNIT PORT resp2|resp3 SKIPFILE SERVERS [OPTION OF THE SUITE...]
#
# SERVERS are the ports of the servers themselves, with commas. It is to be started in the suite's
# source directory. It is the suite's client (tests/test_helper.tcl with --client) without its server:
# what happens is told on standard output, an event a line,
# "@STATE<tab>TEST<tab>MILLISECONDS<tab>DETAIL", to the program that started it. A test that raises
# an error other than an assertion is a failed test and no more, and what follows a failed test
# begins with a connection of its own, and with servers that run no script and are not paused.

lassign $argv unit port protocol skipfile servers_behind
set argv [concat [list --host 127.0.0.1 --port $port --durable --skipfile $skipfile \
    --single $unit --tags -slow] [lrange $argv 5 end]]

# The suite's procedures and options, without the end of the file that starts it all.
set file [open tests/test_helper.tcl]
set helper [read $file]
close $file
set end [string last "\nif {\$::client} {" $helper]
if {$end < 0} {
    error "tests/test_helper.tcl of this version ends in another way than expected"
}
eval [string range $helper 0 $end]

set ::client 1
set ::numclients 1
set ::test_server_fd stdout
fconfigure stdout -buffering line -encoding utf-8

# The same random choices in every run: what fails here fails there.
expr {srand(1)}

proc send_data_packet {fd status data {elapsed 0}} {
    set details {}
    if {$status eq "err"} {
        # "NAME in FILE", and in the following lines why.
        regexp "^(.*?) in ${::curfile}\n(.*)\$" $data -> data details
        # Of an error that is no assertion the suite cuts ten characters and adds all of it again.
        regexp "^(\[^\n]*)\n(\[^\n]*\\1\n.*)\$" $details -> cut details
    }
    tell $status $data $elapsed $details
}

proc tell {status name {elapsed 0} {details {}}} {
    set escapes [list "\\" "\\\\" "\t" "\\t" "\n" "\\n" "\r" "\\r"]
    set line {}
    foreach word [list $status $name $elapsed $details] {
        lappend line [string map $escapes $word]
    }
    puts "@[join $line \t]"
}


interp alias {} plain_client {} redis

rename test suite_test
proc test args {
    set failed_before $::num_failed
    set clients_before [array names ::redis::fd]
    set retval [uplevel 1 [list suite_test {*}$args]]
    if {$::num_failed != $failed_before} {
        # It has not come to the lines that close what it opened, and that may be blocked.
        foreach id [array names ::redis::fd] {
            if {$id ni $clients_before} {
                catch {::redis::redisHandle$id close}
            }
        }
        set ::direct {}
        relieve_servers
        reconnect_in_time
    }
    return $retval
}

# Ends what a test that failed half-way may have left behind on the servers.
proc relieve_servers {} {
    foreach port [split $::servers_behind ,] {
        catch {
            set server [plain_client 127.0.0.1 $port]
            foreach command {
                {script kill} {function kill} {client unpause} {debug set-active-expire 1}
                {client kill type replica}
            } {
                catch {$server {*}$command}
            }
            $server close
        }
    }
    catch {
        set gateway [plain_client $::host $::port]
        $gateway client unpause
        $gateway close
    }
}

# Clients that a gateway holds back in CLIENT PAUSE no server knows of. They are those that get no
# answer.
if {$unit eq "unit/pause" && $port ni [split $servers_behind ,]} {
    proc wait_for_blocked_clients_count {count args} {
        after 200
        set held 0
        foreach id [array names ::redis::fd] {
            if {!$::redis::deferred($id)} continue
            set ::answered 0
            fileevent $::redis::fd($id) readable [list answered $::redis::fd($id)]
            update
            fileevent $::redis::fd($id) readable {}
            incr held [expr {!$::answered}]
        }
        if {$held != $count} {
            fail "$held clients are held back"
        }
    }
}

# Whoever cuts the connections of a test that does not end starts what it talks to anew.
proc reconnect_in_time {} {
    for {set pause 1} {$pause < 5000} {set pause [expr {2 * $pause}]} {
        if {![catch {reconnect}]} return
        after $pause
    }
}

# The blocks of these units that start servers with settings of their own stay out.
if {$unit in {unit/acl unit/acl-v2}} {
    rename tags_acceptable suite_tags_acceptable
    proc tags_acceptable {tags err_return} {
        upvar $err_return err
        if {"acl" in $tags} {
            set tags [lsearch -all -inline -not $tags external:skip]
        }
        return [suite_tags_acceptable $tags err]
    }
}

# What opens and closes a block of tests. The suite ends at the first of these steps that fails;
# here it is a failure of its own, and the tests are run all the same.
proc block_step {what code} {
    if {[catch {uplevel 1 $code} error]} {
        incr ::num_failed
        tell err "(block) $what" 0 "$error\n$::errorInfo"
        reconnect_in_time
    }
}

proc run_external_server_test {code overrides} {
    set srv [dict create host $::host port $::port config [dict create port $::port]]
    lappend ::servers $srv
    block_step "connect" {reconnect}
    block_step "flushall" {r flushall}
    block_step "function flush" {r function flush}
    set saved {}
    foreach {name value} $overrides {
        block_step "config set $name" {
            dict set saved $name [lindex [r config get $name] 1]
            r config set $name $value
            if {$name eq "appendonly" && $value eq "yes"} {
                waitForBgrewriteaof r
            }
        }
    }
    block_step "tests of $::curfile" {uplevel 2 $code}
    dict for {name value} $saved {
        block_step "config set $name" {r config set $name $value}
    }
    set srv [lindex $::servers end]
    set ::servers [lrange $::servers 0 end-1]
    catch {[dict get $srv client] close}
}

# How a server replicates what comes to it can be seen at that server only, and is as much worth
# seeing when it comes through a gateway. With several servers nobody can say which one it comes to.
rename attach_to_replication_stream attach_through_gateway
proc attach_to_replication_stream {} {
    set ports [split $::servers_behind ,]
    if {[llength $ports] > 1} {
        return [attach_through_gateway]
    }
    set srv [lindex $::servers end]
    lset ::servers end [dict replace $srv port [lindex $ports 0]]
    try {
        return [attach_through_gateway]
    } finally {
        lset ::servers end $srv
    }
}

# ------------------------------------------------------------------------------------------ RESP3
# The suite speaks RESP2 where a test does not ask for more. With resp3 all its connections do, and
# replies that have another shape there are given the one that the tests know.

if {$protocol eq "resp3"} {
    rename redis resp2_client
    interp alias {} plain_client {} resp2_client
    proc redis {{server 127.0.0.1} {port 6379} {defer 0} {tls 0} {tlsoptions {}} {readraw 0}} {
        set client [resp2_client $server $port $defer $tls $tlsoptions $readraw]
        set id $::redis::id
        set ::redis::shaped($id) [expr {!$readraw}]
        if {!$readraw} {
            ::redis::redis_writenl $::redis::fd($id) "HELLO 3"
            # A server that wants a password first answers with an error.
            catch {::redis::redis_read_reply $id $::redis::fd($id)}
        }
        return $client
    }

    rename ::redis::__dispatch__raw__ ::redis::__dispatch__resp2__
    proc ::redis::__dispatch__raw__ {id method argv} {
        if {[info commands ::redis::__method__$method] eq {}} {
            if {[string equal -nocase $method hello]} {
                # A test that asks for RESP3 itself wants its shapes, until it asks for RESP2.
                set ::redis::shaped($id) [expr {[lindex $argv 0] ne "3"}]
                if {[lindex $argv 0] eq "2"} {
                    lset argv 0 3
                }
            }
            set ::redis::request($id) [concat [list $method] $argv]
        }
        ::redis::__dispatch__resp2__ $id $method $argv
    }

    rename ::redis::redis_read_reply ::redis::resp3_reply
    # The reply of a nested element comes here as well, which has no shape of its own to lose.
    set ::redis::depth 0
    proc ::redis::redis_read_reply {id fd} {
        incr ::redis::depth
        try {
            set reply [::redis::resp3_reply $id $fd]
        } finally {
            incr ::redis::depth -1
        }
        # A plain client speaks RESP2 and has no shapes.
        if {$::redis::depth == 0 && [info exists ::redis::request($id)]
                && [info exists ::redis::shaped($id)] && $::redis::shaped($id)} {
            return [::redis::resp2_shape $reply $::redis::request($id)]
        }
        return $reply
    }

    proc ::redis::resp2_shape {reply request} {
        set command [string toupper [lindex $request 0]]
        set words [string toupper [lrange $request 1 end]]
        set pairs 0
        switch -regexp -- $command {
            {^Z(REV)?RANGE(BYSCORE)?$} - {^Z(UNION|INTER|DIFF|RANDMEMBER)$} {
                set pairs [expr {"WITHSCORES" in $words}]
            }
            {^HRANDFIELD$} {
                set pairs [expr {"WITHVALUES" in $words}]
            }
            {^ZPOP(MIN|MAX)$} {
                set pairs [expr {[llength $words] > 1}]
            }
            {^XREAD(GROUP)?$} {
                set streams {}
                foreach {key entries} $reply {
                    lappend streams [list $key $entries]
                }
                return $streams
            }
        }
        if {$pairs} {
            return [concat {*}$reply]
        }
        return $reply
    }

    # A double is the text that RESP2 has in a bulk string.
    proc ::redis::read_double {id fd} {
        set text [redis_read_line $fd]
        expr {$::redis::shaped($id) ? $text : double($text)}
    }
    set body [info body ::redis::resp3_reply]
    set double {[expr {double([redis_read_line $fd])}]}
    if {[string first $double $body] < 0} {
        error "tests/support/redis.tcl of this version reads doubles in another way than expected"
    }
    proc ::redis::resp3_reply {id fd} [string map [list $double {[::redis::read_double $id $fd]}] $body]
}

# ------------------------------------------------------------------------------------------ order
# Of two clients the suite expects that what the one has sent, without waiting for the answer, is
# done before what the other sends then. One server that reads from both does it so as a rule; with
# a gateway between, which has the one of them served on a connection of its own, nobody can say.
# So this waits until a server has the first: it blocks a client more than before, or answers.

set ::settling {
    BLPOP BRPOP BLMOVE BRPOPLPUSH BLMPOP BZPOPMIN BZPOPMAX BZMPOP XREAD XREADGROUP EXEC UNSUBSCRIBE
    PUNSUBSCRIBE
}
set ::direct {}

proc blocked_clients {} {
    if {$::direct eq {}} {
        foreach port [split $::servers_behind ,] {
            lappend ::direct [plain_client 127.0.0.1 $port]
        }
    }
    set sum 0
    foreach server $::direct {
        incr sum [getInfoProperty [$server info clients] blocked_clients]
    }
    return $sum
}

proc answered {fd} {
    set ::answered 1
    fileevent $fd readable {}
}

rename ::redis::__dispatch__raw__ ::redis::__dispatch__unsettled__
proc ::redis::__dispatch__raw__ {id method argv} {
    if {!($::redis::deferred($id) && [string toupper $method] in $::settling)} {
        return [::redis::__dispatch__unsettled__ $id $method $argv]
    }
    if {[catch {blocked_clients} before]} {
        # A server that runs a script for long answers nobody.
        set ::direct {}
        return [::redis::__dispatch__unsettled__ $id $method $argv]
    }
    ::redis::__dispatch__unsettled__ $id $method $argv
    set fd $::redis::fd($id)
    set ::answered 0
    fileevent $fd readable [list answered $fd]
    set until [expr {[clock milliseconds] + 1000}]
    while {!$::answered && [clock milliseconds] < $until} {
        if {[catch {blocked_clients} now] || $now > $before} break
        after 2
        update
    }
    fileevent $fd readable {}
}

if {[catch {execute_test_file $unit} error]} {
    tell err "(block) end of $::curfile" 0 "$error\n$::errorInfo"
}
tell end $unit
