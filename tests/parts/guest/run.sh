# What the guest runs once it is up, as root; what it prints is what the test reads.
cd /tmp
mkdir /opt/marshal
cp -r /payload/. /opt/marshal
chmod -R a+rX /opt/marshal
useradd --create-home tester
loginctl enable-linger tester
export MARSHAL_TEST_GUEST=1
export MARSHAL_UNDER_TEST=/opt/marshal/marshal
export MARSHAL_SHIM_UNDER_TEST=/opt/marshal/marshal-shim
export MARSHAL_PROBER_UNDER_TEST=/opt/marshal/prober
cat >/tmp/as.sh <<'AS'
cp -r /opt/marshal/repository "$HOME/repository"
cd "$HOME/repository"
echo "== $1: doctor"
$MARSHAL_TEST_SCOPE /opt/marshal/marshal doctor
echo "== $1: readme"
PATH=/opt/marshal:$PATH
$MARSHAL_TEST_SCOPE sh ./readme.sh
echo "== $1: ended with $?"
echo "== $1: left: $(pgrep -c -x 'marshal|marshal-shim')"
cd /tmp
while read -r name; do
    echo "== $1: $name"
    # This one is a supervisor to whom groups were handed.
    unset MARSHAL_TEST_SUPERVISOR
    [ "$name" != sandbox::groups::holds_what_was_handed ] || export MARSHAL_TEST_SUPERVISOR=1
    $MARSHAL_TEST_SCOPE /opt/marshal/tests --exact "$name" --nocapture </dev/null
    echo "== $1: ended with $?"
done </opt/marshal/names
AS
scope='--scope --quiet --collect -p Delegate=yes'
HOME=/root MARSHAL_TEST_SCOPE="systemd-run $scope" sh /tmp/as.sh root
runuser -u tester -- env HOME=/home/tester XDG_RUNTIME_DIR="/run/user/$(id -u tester)" \
    MARSHAL_TEST_DELEGATED=1 MARSHAL_TEST_SCOPE="systemd-run --user $scope" sh /tmp/as.sh user
# The shipped unit, restarted while it works.
echo "== root: service"
install -m 755 /opt/marshal/marshal /opt/marshal/marshal-shim /usr/local/bin
install -m 644 /opt/marshal/marshal.service /etc/systemd/system
mkdir -p /etc/marshal/project
cat >/etc/marshal/supervisor.toml <<'TOML'
[pool.demo]
size      = 2
command   = ["marshal", "script-agent"]
workspace = { path = "project", mode = "copy" }
policy    = "developer"
TOML
for number in $(seq 24); do
    printf '{"id": "t%s", "prompt": "sleep 700ms\\nsay %s"}\n' "$number" "$number"
done >/tmp/tasks.jsonl
# As its clients reach it.
service() { STATE_DIRECTORY=/var/lib/marshal timeout 300 marshal --config /etc/marshal/supervisor.toml "$@"; }
systemctl daemon-reload
systemctl start marshal
for wait in $(seq 60); do
    ! service ls >/dev/null 2>&1 || break
    sleep 1
done
service ls
service run --quiet /tmp/tasks.jsonl >/tmp/client 2>&1 &
sleep 6
for pause in 3 7 5; do
    systemctl restart marshal
    sleep $pause
done
for wait in $(seq 60); do
    service --json report >/tmp/report.json 2>/dev/null
    ! grep -q '"done":24' /tmp/report.json || break
    sleep 2
done
systemctl stop marshal
cat /tmp/client
systemctl show marshal -p Result -p ExecMainStatus
journalctl -u marshal -o cat | tail -n 30
service --json report
echo "== root: ended with $?"
echo "== end"
