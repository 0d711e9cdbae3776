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
echo "== end"
