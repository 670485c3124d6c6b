#!/bin/sh
# Prepares what a make target needs, and does nothing when it is there already:
#
#   tools/setup.sh VENV REQUIREMENTS [postgres] [redis] [rabbitmq] [node] [proxies] [jq] [pngquant] [chromium]
#
# a virtual environment with exactly the hashed requirements and an editable leasekeeper, and the
# servers and browsers that tests or benchmarks start. Only what is missing is installed through apt.
set -eu
cd "$(dirname "$0")/.."

venv=$1
requirements=$2
shift 2
python=${PYTHON:-python3}
apt_updated=no

say() { printf '%s\n' "setup: $*" >&2; }
die() { say "$*"; exit 1; }

apt_install() {
    command -v apt-get >/dev/null || die "please install $1 with this system's package manager, then try again"
    if [ "$(id -u)" = 0 ]; then sudo=
    elif command -v sudo >/dev/null; then sudo=sudo
    else die "$1 is missing, and there is neither root nor sudo here; run as root: apt-get install $1"
    fi
    say "installing $1"
    if [ "$apt_updated" = no ]; then
        $sudo apt-get update -qq
        apt_updated=yes
    fi
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$1" >&2
}

have_postgres() {
    command -v initdb >/dev/null && return
    for initdb in /usr/lib/postgresql/*/bin/initdb; do
        [ -x "$initdb" ] && return
    done
    return 1
}

# The program itself says whether it finds a browser: the setting, Playwright's own, chromium, google-chrome.
have_browser() {
    "$venv/bin/python" -c '
import os
from leasekeeper.browsers.finding import find_browser
from leasekeeper.errors import BrowserNotFound
try:
    find_browser(os.environ.get("LEASEKEEPER_BROWSER"))
except BrowserNotFound as error:
    raise SystemExit(f"setup: {error.message}" if os.environ.get("LEASEKEEPER_BROWSER") else 1)
'
}

install_browser() {
    # A setting that leads nowhere is for the person to mend: another browser would not be looked at.
    [ -z "${LEASEKEEPER_BROWSER:-}" ] || exit 1
    # Where the system has no such package (Ubuntu), Playwright brings a browser of its own.
    (apt_install chromium) || "$venv/bin/python" -m playwright install --with-deps chromium >&2 ||
        die "no browser could be installed; set LEASEKEEPER_BROWSER to the path of Chromium or Chrome"
    have_browser || die "there is still no browser; set LEASEKEEPER_BROWSER to the path of Chromium or Chrome"
}

make_venv() {
    rm -rf "$venv"
    "$python" -m venv "$venv" >/dev/null 2>&1 && return
    apt_install python3-venv
    rm -rf "$venv"
    "$python" -m venv "$venv"
}

# A stamp remembers what an installation was made from. fresh NAME INPUT tells whether it still holds.
fresh() { [ -x "$venv/bin/python" ] && [ "$(cat "$venv/$1.stamp" 2>/dev/null)" = "$2" ]; }
stamp() { printf '%s\n' "$2" >"$venv/$1.stamp"; }
pip() { "$venv/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }

command -v "$python" >/dev/null || die "$python was not found; Leasekeeper needs Python 3.11 or newer"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || die "Leasekeeper needs Python 3.11 or newer, $python is older"

# The directory is part of the stamp because a virtual environment cannot be moved.
locked="$("$python" -VV | tr '\n' ' ') $PWD $(cksum <"$requirements")"
if ! fresh requirements "$locked"; then
    say "installing $requirements into $venv"
    make_venv
    pip install --require-hashes --no-deps -r "$requirements"
    stamp requirements "$locked"
fi

# Installing also copies the pages' script into the package (tools/vendored.py).
project="$(cksum <pyproject.toml) $(cksum <tools/vendored.py)"
if ! fresh project "$project" || [ ! -f src/leasekeeper/service/pages/assets/vendor/htmx.min.js ]; then
    pip install --no-build-isolation --no-deps -e .
    stamp project "$project"
fi

for server in "$@"; do
    case $server in
        postgres) have_postgres || apt_install postgresql ;;
        rabbitmq) [ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] || apt_install rabbitmq-server ;;
        node) command -v node >/dev/null && command -v npm >/dev/null || apt_install npm ;;
        redis) command -v redis-server >/dev/null || apt_install redis-server ;;
        proxies) for proxy in nginx caddy; do PATH="$PATH:/usr/sbin" command -v "$proxy" >/dev/null || apt_install "$proxy"; done ;;
        jq|pngquant) command -v "$server" >/dev/null || apt_install "$server" ;;
        chromium) have_browser || install_browser ;;
        *) die "unknown server: $server" ;;
    esac
done
