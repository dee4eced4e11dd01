"""Write Chromium's policy: it asks nothing of its maker by itself, and trusts the authorities of the image.

Its maker's hosts would be refused by the proxy and written down at each page. Without the authorities, which
it looks for nowhere, no page opens behind a proxy that inspects what passes.
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

found = [
    "".join(body.split())
    for path in sorted(AUTHORITIES.rglob("*.crt"))
    for body in CERTIFICATE.findall(path.read_text(encoding="latin-1"))
]
POLICY.parent.mkdir(parents=True, exist_ok=True)
POLICY.write_text(json.dumps({**QUIET, "CACertificates": found}), encoding="ascii")
