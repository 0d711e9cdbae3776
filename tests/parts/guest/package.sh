# The Debian package in the guest, as root; what it prints is what the test reads.
cd /root
export HOME=/root
say() { printf '== package: %s\n' "$1"; }
# As its clients reach it.
client() { STATE_DIRECTORY=/var/lib/marshal timeout 300 marshal --config /etc/marshal/supervisor.toml "$@"; }
show() { systemctl show marshal -p "$1" --value; }
# Waits until a command succeeds.
until_true() {
    for wait in $(seq 120); do
        ! "$@" >/dev/null 2>&1 || return 0
        sleep 0.5
    done
    echo "NEVER: $*"
}
is() { [ "$(show "$1")" = "$2" ]; }
# The first line of a page of the HTTP listener.
page() {
    bash -c 'exec 3<>/dev/tcp/127.0.0.1/7117 && printf "GET $0 HTTP/1.0\r\nHost: 127.0.0.1:7117\r\n\r\n" >&3 && head -1 <&3' "$1" | tr -d '\r'
}
tasks() {
    for number in $(seq "$1" "$2"); do
        printf '{"id": "t%s", "prompt": "sleep 700ms\\nsay %s"}\n' "$number" "$number"
    done
}
# All processes of the service, its agents' too.
processes() { find /sys/fs/cgroup/system.slice/marshal.service -name cgroup.procs -exec cat {} + | sort -n; }
alive() {
    count=0
    for pid in $1; do ! kill -0 "$pid" 2>/dev/null || count=$((count + 1)); done
    echo "$count"
}

say install
dpkg --install /payload/marshal.deb
echo "code $?"
systemctl is-enabled marshal marshal-http.socket marshal-control.socket
systemctl start marshal
echo "without a configuration: $(show ActiveState), $(show ConditionResult)"
stat -c '%n %a %U' /etc/marshal /etc/marshal/keys
getent passwd marshal | cut -d: -f1,6
man_pages=$(dpkg --listfiles marshal | grep -c 'man1/marshal.*gz')
echo "manual pages: $((man_pages > 10))"
bash -c '. /usr/share/bash-completion/completions/marshal && complete -p marshal'
ls /etc/apparmor.d/marshal 2>&1

say start
printf 's3cr3t-of-the-service' >/etc/marshal/keys/test
mkdir -p /etc/marshal/project /etc/systemd/system/marshal.service.d
cat >/etc/marshal/supervisor.toml <<'TOML'
[pool.demo]
size      = 2
command   = ["marshal", "script-agent"]
workspace = { path = "project", mode = "copy" }
policy    = "autonomous"
env       = { set = { KEY = "credential:test" } }

[sandbox.standard.limits]
memory = "200M"
TOML
systemctl start marshal
echo "without the credential: code $?"
journalctl -u marshal -o cat | grep -m1 -o 'LoadCredential=test:FILE'
systemctl reset-failed marshal
cat >/etc/systemd/system/marshal.service.d/test.conf <<'UNIT'
[Service]
LoadCredential=test:/etc/marshal/keys/test
WatchdogSec=8
UNIT
systemctl daemon-reload
systemctl start marshal
# Nothing is waited for: the start returned because the service said so.
page /readyz
client ls
echo "type $(show Type), notify $(show NotifyAccess), pid $(show MainPID)"
until_true sh -c 'systemctl show marshal -p StatusText | grep -q "2 slots"'
show StatusText
client run --quiet 'run echo done' | tail -1

say limits
client run --quiet 'sleep 15s' >/dev/null 2>&1 &
task=$!
bounds() { find /sys/fs/cgroup/system.slice/marshal.service -mindepth 1 -name memory.max -exec cat {} + | grep -x 209715200; }
until_true bounds
bounds | sort -u
wait $task
client run --quiet 'run head -c 400M /dev/zero | tail -c 390M | wc -c' | tail -1
journalctl -k -o cat | grep -m1 -o 'Memory cgroup out of memory: Killed process'
is ActiveState active && echo "the service goes on: $(show NRestarts) restarts"

say reload
systemctl reload marshal
echo "code $?"
systemctl kill --kill-who=main -s HUP marshal
sleep 2
is ActiveState active && echo "active again"

say watchdog
tasks 1 8 >/tmp/tasks.jsonl
client run --quiet /tmp/tasks.jsonl >/tmp/watched 2>&1 &
sleep 3
first=$(show MainPID)
# The lock of the writer of a WAL journal, held by somebody else: the supervisor runs, and nothing moves.
python3 -c '
import fcntl, time
lock = open("/var/lib/marshal/journal.db-shm", "r+b")
fcntl.lockf(lock, fcntl.LOCK_EX, 1, 120)
print("locked", flush=True)
time.sleep(300)' &
locker=$!
for wait in $(seq 120); do
    is MainPID "$first" || break
    sleep 0.5
done
kill "$locker"
until_true is ActiveState active
echo "restarts: $(show NRestarts)"
journalctl -u marshal -o cat | grep -m1 -o 'the watchdog of the service manager is not fed.*locked'
journalctl -u marshal -o cat | grep -m1 'Watchdog timeout'
journalctl -u marshal -o cat | grep -m1 "Failed with result 'watchdog'"
until_true page /readyz
for wait in $(seq 100); do
    client --json results >/tmp/results 2>/dev/null
    [ "$(grep -c '"outcome":"done"' /tmp/results)" -lt 8 ] || break
    sleep 1
done
echo "done: $(grep -c '"outcome":"done"' /tmp/results)"

say sockets
systemctl stop marshal
systemctl enable --now marshal-http.socket marshal-control.socket 2>/dev/null
echo "before: $(show ActiveState)"
page /healthz
until_true is ActiveState active
echo "after a page: $(show ActiveState)"
systemctl stop marshal
client ls | head -1
echo "after a command: $(show ActiveState)"
tasks 101 116 >/tmp/tasks.jsonl
client run --quiet /tmp/tasks.jsonl >/tmp/restarted 2>&1 &
sleep 4
# Clients ask all the time, and none is turned away while the supervisor restarts.
(while [ ! -e /tmp/stop ]; do page /healthz; done >/tmp/pages 2>&1) &
pages=$!
for pause in 3 5; do
    systemctl restart marshal
    sleep $pause
done
touch /tmp/stop
wait $pages
echo "pages: $(sort -u /tmp/pages | tr '\n' ',')"
for wait in $(seq 100); do
    client --json results >/tmp/results 2>/dev/null
    [ "$(grep -c '"outcome":"done"' /tmp/results)" -lt 16 ] || break
    sleep 1
done
echo "done: $(grep -c '"outcome":"done"' /tmp/results)"
client --json report | tail -1

say kill
for who in main all; do
    until_true is ActiveState active
    client run --quiet 'sleep 100s' 'spawn-orphan' >/dev/null 2>&1 &
    sleep 12
    pids=$(processes)
    echo "$who: before $(($(echo "$pids" | wc -l) > 4))"
    systemctl kill --kill-who=$who -s KILL marshal
    sleep 1
    echo "$who: left $(alive "$pids")"
done

say remove
systemctl disable --now marshal-http.socket marshal-control.socket 2>/dev/null
systemctl stop marshal
dpkg --purge marshal
echo "code $?"
ls /usr/bin/marshal* /usr/lib/systemd/system/marshal* /lib/systemd/system/marshal* 2>/dev/null
[ -e /var/lib/marshal/journal.db ] && echo "the journal is kept"
say log
journalctl -u marshal -o cat | tail -n 40
echo "== end"
