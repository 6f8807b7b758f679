"""The FastAPI application of docs/how-to/asyncio.md works."""

from __future__ import annotations

import pytest

from tests.unit import markdown_pages


@pytest.mark.parametrize("store", ["memory", pytest.param("cassandra", marks=pytest.mark.cassandra)])
def test_the_page_s_application(store, request, monkeypatch):
    """A request sends a message, and another one asks for it."""
    from fastapi.testclient import TestClient  # takes long, and all processes of a run import this module

    url = "memory://" if store == "memory" else request.getfixturevalue("keyspace").url
    monkeypatch.setenv("CQUEUE_URL", url)
    page = markdown_pages.ROOT / "docs/how-to/asyncio.md"
    (block,) = [block for block in markdown_pages.blocks(page, "python") if "FastAPI" in block.text]
    namespace: dict[str, object] = {"__name__": "page"}
    exec(block.code, namespace)  # noqa: S102 - that is the test
    with TestClient(namespace["app"]) as client:
        sent = client.post("/mails", params={"address": "ann@example.org"})
        assert sent.status_code == 202
        assert client.get(f"/mails/{sent.json()['id']}").json() == {"state": "ready"}
