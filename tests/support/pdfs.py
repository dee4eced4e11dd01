"""Make small PDFs without a library."""

from __future__ import annotations


def a_pdf(*pages: str) -> bytes:
    """Return a PDF with a page for each text; an empty text is a page without words."""
    kids = " ".join(f"{3 + 2 * index} 0 R" for index in range(len(pages)))
    parts = ["<< /Type /Catalog /Pages 2 0 R >>", f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>"]
    font = "<< /Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >>"
    for index, words in enumerate(pages):
        stream = f"BT /F1 12 Tf 50 700 Td ({words}) Tj ET" if words else ""
        parts.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Resources {font}"
            f" /Contents {4 + 2 * index} 0 R >>"
        )
        parts.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
    body, places = b"%PDF-1.4\n", []
    for number, part in enumerate(parts, 1):
        places.append(len(body))
        body += f"{number} 0 obj\n{part}\nendobj\n".encode()
    table = "".join(f"{place:010d} 00000 n \n" for place in places)
    head = f"xref\n0 {len(parts) + 1}\n0000000000 65535 f \n{table}"
    tail = f"trailer\n<< /Size {len(parts) + 1} /Root 1 0 R >>\nstartxref\n{len(body)}\n%%EOF\n"
    return body + (head + tail).encode()
