#!/bin/sh
# Install what the owner chose for the agents' image, by name; pip is there in any case.
set -eu

packages() {
    echo "Installing $* …"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends "$@" >/dev/null
    rm -rf /var/lib/apt/lists/* /var/cache/apt/* /usr/share/doc/* /usr/share/man/* /usr/share/locale/*
}

install -m 0755 /opt/layers/pip /usr/local/bin/pip
for layer in "$@"; do
    case "$layer" in
        browser)
            packages chromium
            mkdir -p /opt/browser/.claude-plugin
            cp -r /opt/layers/browser/skills /opt/browser/skills
            cp /opt/layers/browser/plugin.json /opt/browser/.claude-plugin/plugin.json
            chmod -R a+rX /opt/browser
            install -m 0755 /opt/layers/browser/browse.py /usr/local/bin/browse
            python3 /opt/layers/browser/policy.py
            ;;
        node) packages nodejs npm ;;
        pip) ;;
        *) echo "There is no layer '$layer'." >&2; exit 1 ;;
    esac
done
rm -rf /opt/layers
