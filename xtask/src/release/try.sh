# Installs what `cargo xtask release` made in an empty Debian. The last line that it prints says what was tried.
version=$1 files=$2 empty=$3 node=$4 keyring=$5 mirror=$6

rm -rf "$empty"
trap 'rm -rf "$empty"' EXIT
debootstrap --keyring="$keyring" --variant=minbase --include=python3-pip bookworm "$empty" "$mirror" > "$empty.log"
cp -r "$files" "$empty/files"
cp "$node" "$empty/usr/local/bin/node"
npm=$(dirname "$(dirname "$(readlink -f "$(command -v npm)")")")
cp -rL "$npm" "$empty/npm"

unshare --pid --fork --kill-child --mount --mount-proc --root "$empty" \
    env -i HOME=/root PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin sh -euc '
version=$1
cd /root
mount -t sysfs sysfs /sys
export DEBIAN_FRONTEND=noninteractive PIP_BREAK_SYSTEM_PACKAGES=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

dpkg --install "/files/otelctx_${version}_amd64.deb"
test "$(otelctx --version)" = "otelctx $version"
otelctx demo --duration 2 --output demo | grep /checkout
test -s demo/*.svg
test -s /usr/share/man/man1/otelctx-record.1*
test -s /usr/lib/systemd/system/otelctx-agent.service
otelctx agent --config /etc/otelctx/agent.toml --check-config | grep "^collector"
bash -c ". /usr/share/bash-completion/completions/otelctx; complete -p otelctx"
dpkg --remove otelctx
hash -r

tar -xzf "/files/otelctx-$version-x86_64-linux.tar.gz"
static="/root/otelctx-$version-x86_64-linux/otelctx"
test "$("$static" --version)" = "otelctx $version"
"$static" demo --duration 2 --output static-demo | grep /checkout

pip install --quiet --no-index --find-links /files otelctx
test "$(otelctx --version)" = "otelctx $version"
python3 -c "
import otelctx, subprocess
otelctx.publish({\"service.name\": \"from-python\"})
subprocess.run([\"otelctx\", \"ps\"], check=True)
" | grep from-python

mkdir project
cd project
node /npm/bin/npm-cli.js install --silent --offline --no-audit --no-fund "/files/otelctx-$version.tgz"
node -e "
require(\"otelctx\").publish({ \"service.name\": \"from-node\" })
require(\"child_process\").execFileSync(\"otelctx\", [\"ps\"], { stdio: \"inherit\" })
" | grep from-node
echo "the .deb, the archive, the wheel and the npm package work in an empty Debian $(cat /etc/debian_version)"
' sh "$version"
