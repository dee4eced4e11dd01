"""Write Chromium's policy: it calls no service of its maker, and trusts the image's certificate authorities.

The proxy would refuse its maker's hosts and log them at each page. Chromium itself does not look for the
authorities; without them, no page opens behind a proxy that inspects the traffic.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

AUTHORITIES = Path("/usr/local/share/ca-certificates")
POLICY = Path("/etc/chromium/policies/managed/andy.json")
CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", re.DOTALL)
QUIET = {
    "BackgroundModeEnabled": False,
    "BrowserNetworkTimeQueriesEnabled": False,
    "ComponentUpdatesEnabled": False,
    "DefaultSearchProviderEnabled": False,
    "EncryptedClientHelloEnabled": False,  # the proxy refuses a hello that may hide its host
    "MetricsReportingEnabled": False,
    "NetworkPredictionOptions": 2,  # connect to nothing ahead of time
    "SafeBrowsingProtectionLevel": 0,
    "SearchSuggestEnabled": False,
    "TranslateEnabled": False,
}

certificates = [
    "".join(body.split())
    for path in sorted(AUTHORITIES.rglob("*.crt"))
    for body in CERTIFICATE.findall(path.read_text(encoding="latin-1"))
]
POLICY.parent.mkdir(parents=True, exist_ok=True)
POLICY.write_text(json.dumps({**QUIET, "CACertificates": certificates}), encoding="ascii")
