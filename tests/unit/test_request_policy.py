"""What a request may ask of the model service besides an answer."""

from __future__ import annotations

import json
from typing import get_args

import pytest

from orchestrator.groups.settings import ModelFeature
from orchestrator.proxies.model import request_policy
from orchestrator.proxies.model.error_responses import ProxyRefused

SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
IMAGE = {"type": "image", "source": {"type": "url", "url": "https://elsewhere.example/?what=was-said"}}


def refused(
    body: object, *, may_search: bool = False, is_open: bool = False, features: tuple[ModelFeature, ...] = ()
) -> int | None:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        request_policy.check_request(raw, may_search=may_search, is_open=is_open, features=features)
    except ProxyRefused as error:
        return error.refusal.status
    return None


def said(*blocks: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": list(blocks)}]}


@pytest.mark.parametrize(
    "body",
    [
        {"tools": [SEARCH]},
        {"tools": [{**SEARCH, "type": "web_search_20991231"}]},
        {
            "messages": [
                {
                    "role": "system",
                    "content": [
                        {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": SEARCH}}
                    ],
                }
            ]
        },
        b'{"tools": [{"type": "web_\\u0073earch_20250305", "max_uses": 1}]}',
    ],
)
def test_a_search_passes_only_where_the_group_may(body: object) -> None:
    assert refused(body) == 403
    assert refused(body, may_search=True) is None


@pytest.mark.parametrize("most", [None, 0, 11, "8", True])
def test_a_search_says_how_often_it_may_search(most: object) -> None:
    assert refused({"tools": [{**SEARCH, "max_uses": most}]}, may_search=True) == 400


@pytest.mark.parametrize(
    "body",
    [
        {"mcp_servers": [{"type": "stdio", "url": "https://elsewhere.example"}]},
        {"tools": [{"type": "code_execution_20250825", "name": "code_execution"}]},
        {"tools": [{"type": "a_tool_of_tomorrow_20300101", "name": "x"}]},
    ],
)
def test_what_the_service_would_do_elsewhere_never_passes(body: object) -> None:
    assert refused(body, may_search=True, is_open=True) == 403


@pytest.mark.parametrize(
    "body",
    [
        {"tools": [{"type": "web_fetch_20250910", "name": "web_fetch"}]},
        said(IMAGE),
        said({"type": "image_url", "image_url": {"url": "https://elsewhere.example"}}),
        said({"type": "input_image", "image_url": "https://elsewhere.example"}),
        said({"type": "input_image"}),
        said({"type": "text", "text": "x", "file_url": "https://elsewhere.example"}),
        said({"type": "tool_result", "tool_use_id": "1", "content": [IMAGE]}),
        said({"type": "document", "source": {"type": "content", "content": [IMAGE]}}),
    ],
)
def test_the_service_fetches_only_for_a_group_that_could_itself(body: object) -> None:
    assert refused(body, may_search=True) == 403
    assert refused(body, is_open=True) is None


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "source": "https://elsewhere.example/?what=was-said"},
        {"type": "document", "source": ["https://elsewhere.example"]},
        {"type": "image", "url": "https://elsewhere.example"},
        {"url": "https://elsewhere.example"},
    ],
)
def test_an_address_in_place_of_a_source_does_not_pass(block: object) -> None:
    assert refused(said(block)) == 403
    assert refused(said(block), is_open=True) is None


@pytest.mark.parametrize(
    "block",
    [
        {"type": "search_result", "source": "https://elsewhere.example", "title": "x", "content": []},
        {"type": "text", "text": "x", "citations": [{"type": "search_result_location", "source": "x"}]},
        {"type": "text", "text": "x", "citations": [{"type": "web_search_result_location", "url": "x"}]},
        {"type": "web_search_tool_result", "content": [{"type": "web_search_result", "url": "x"}]},
        {"type": "web_fetch_tool_result", "content": {"type": "web_fetch_result", "url": "x"}},
    ],
)
def test_an_address_that_only_says_where_a_text_is_from_passes(block: object) -> None:
    assert refused(said(block)) is None


def test_words_and_the_agents_own_tools_pass() -> None:
    body = {
        "tools": [
            {
                "name": "Bash",
                "input_schema": {"properties": {"type": {"enum": ["url"]}, "x": {"type": "url"}}},
            },
            {"type": "custom", "name": "x", "input_schema": {}},
            {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
        ],
        "context_management": {
            "edits": [
                {"type": "clear_thinking_20251015", "keep": "all"},
                {"type": "clear_tool_uses_20250919"},
            ]
        },
        "output_config": {
            "effort": "high",
            "task_budget": {"type": "tokens", "total": 20_000},
            "format": {"type": "json_schema", "schema": {"properties": {"image_url": {"type": "string"}}}},
        },
        "messages": [
            {"role": "user", "content": '"type": "web_search_20250305", "mcp_servers": [1]'},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "input": {"mcp_servers": [1], "type": "url"}}],
            },
            {"role": "user", "content": [{"type": "image", "source": {"type": "base64", "data": "aGk="}}]},
        ],
    }
    assert refused(body) is None
    assert refused(b"") is None


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"no JSON",
        b'{"tools": [], "tools": [1]}',
        b'{"a": "\xff"}',
        b'{"tools": {"type": "web_fetch_20250910", "name": "x"}}',
        b'{"tools": "web_fetch_20250910"}',
        b'{"output_config": "high"}',
        b'[{"type": "web_fetch_20250910"}]',
        b"7",
        b"[" * 100_000,
        b"[" + b"{}," * 1_000_000 + b"{}]",
        '{"a": 1}'.encode("utf-16"),
    ],
)
def test_what_two_readers_could_read_differently_does_not_pass(body: bytes) -> None:
    assert refused(body) == 400


@pytest.mark.parametrize(
    "kind",
    [
        "web_fetch",
        "web_search",
        "code_execution",
        "web_fetch_20250910 ",
        "Web_fetch_20250910",
        "web_fetch_2025-09-10",
        "web_fetch_v2_20250910",
        "mcp_toolset",
        "skills",
        None,
        7,
    ],
)
def test_a_tool_of_a_type_that_is_not_known_does_not_pass(kind: object) -> None:
    tool = {"type": kind, "name": "x"}
    assert refused({"tools": [tool]}, may_search=True) == 403
    defined = {"type": "tool_definition", "definition": tool}
    assert refused(said({"type": "tool_addition", "tool": defined}), may_search=True) == 403
    assert refused(said({"type": "tool_addition", "tools": [tool]}), may_search=True) == 403


@pytest.mark.parametrize(
    "body",
    [
        {"speed": "fast"},
        {"service_tier": "priority"},
        {"inference_geo": "us"},
        {"container": {"skills": [{"type": "anthropic", "skill_id": "pptx"}]}},
        {"Mcp_servers": [{"url": "https://elsewhere.example"}]},
        {"tomorrow": 1},
        {"context_management": {"compaction": {"type": "compact_20260112"}}},
        {"context_management": {"Edits": [{"type": "compact_20260112"}]}},
        {"context_management": {"edits": {"type": "compact_20260112"}}},
        {"context_management": {"edits": [[{"type": "compact_20260112"}]]}},
        {"context_management": {"edits": None}},
        {"context_management": [{"edits": []}]},
        {"context_management": "compact_20260112"},
        {"output_config": {"speed": "fast"}},
        {"messages": [{"role": "system", "content": [], "output_config": {"speed": "fast"}}]},
        said({"type": "file", "file_id": "file_011"}),
        said({"type": "input_file"}),
        said({"type": "image", "file_id": "file_011"}),
        {"context_management": {"edits": [{"type": "compact_20260112"}]}},
        {"context_management": {"edits": [{"type": "summarise"}]}},
        said({"type": "image", "source": {"type": "file", "file_id": "file_011"}}),
        said({"type": "document", "source": {"type": "Url", "url": "https://elsewhere.example"}}),
        said({"type": "container_upload", "file_id": "file_011"}),
        said({"type": "container_upload"}),
        said({"type": "video_url", "video_url": {"url": "https://elsewhere.example"}}),
        said({"type": "input_audio", "Audio_URL": "https://elsewhere.example"}),
        said({"type": "text", "text": "x", "mcp_servers": [{"url": "https://elsewhere.example"}]}),
        said({"type": "text", "text": "x"}, {"type": "text", "text": "y", "parts": [{"a": 1}]}, IMAGE),
        said(IMAGE, {"type": "text", "text": "y", "parts": [{"a": 1}, [{"b": 2}]]}),
        {"messages": [{"role": "user", "content": [[IMAGE], [{"a": 1}]]}], "stop_sequences": [["x"]]},
        {"tools": [{"name": "Bash", "input_schema": {}}, {"type": "web_fetch", "name": "x"}]},
        {"tools": ["web_fetch_20250910"]},
        {"tools": [None]},
        {"messages": [{"role": "user", "content": [], "input": [IMAGE]}]},
        {"messages": [{"role": "user", "content": [], "metadata": {"a": IMAGE}}]},
    ],
)
def test_what_costs_or_reaches_something_by_another_name_does_not_pass(body: object) -> None:
    assert refused(body, may_search=True) == 403


def test_the_examples_of_a_tools_input_are_the_agents_own() -> None:
    tool = {"name": "Fetch", "input_schema": {}, "input_examples": [{"type": "url", "image_url": "x"}]}
    assert refused({"tools": [tool]}) is None
    assert refused({"context_management": {}}) is None


@pytest.mark.parametrize(
    "body",
    [
        {"tools": [{**SEARCH, "name": f"search_{number}", "max_uses": 10} for number in range(10)]},
        {"tools": [{**SEARCH, "max_uses": 6}, {**SEARCH, "type": "web_search_20260209", "max_uses": 5}]},
        {
            "tools": [{**SEARCH, "max_uses": 6}],
            **said({"type": "tool_addition", "tool": {"type": "tool_definition", "definition": SEARCH}}),
        },
    ],
)
def test_the_search_tools_of_a_request_search_as_often_together_as_one_may(body: object) -> None:
    assert refused(body, may_search=True) == 400


def test_as_many_searches_as_are_allowed_pass() -> None:
    at_most = {**SEARCH, "max_uses": request_policy.MAX_SEARCHES_A_REQUEST}
    assert refused({"tools": [at_most]}, may_search=True) is None
    halves = [{**SEARCH, "max_uses": 5}, {**SEARCH, "name": "other", "max_uses": 5}]
    assert refused({"tools": halves}, may_search=True) is None
    facts = request_policy.check_request(
        json.dumps({"tools": halves}).encode(), may_search=True, is_open=False
    )
    assert facts.searches == 10


@pytest.mark.parametrize(
    ("body", "model", "is_streamed"),
    [
        ({"model": "claude-sonnet-4-6", "stream": True}, "claude-sonnet-4-6", True),
        ({"model": "claude\nsonnet", "stream": "yes"}, None, False),
        ({"model": 7, "stream": False}, None, False),
        ({}, None, False),
    ],
)
def test_a_request_names_its_model_and_says_whether_it_streams(
    body: object, model: str | None, is_streamed: bool
) -> None:
    facts = request_policy.check_request(json.dumps(body).encode(), may_search=False, is_open=False)
    assert (facts.model, facts.is_streamed) == (model, is_streamed)


@pytest.mark.parametrize(
    ("feature", "body"),
    [
        ("fast_mode", {"speed": "fast"}),
        ("inference_geo", {"inference_geo": "us"}),
        ("compaction", {"context_management": {"edits": [{"type": "compact_20260112"}]}}),
    ],
)
def test_what_costs_more_passes_where_the_owner_allows_just_that(feature: ModelFeature, body: object) -> None:
    others = tuple(one for one in get_args(ModelFeature) if one != feature)
    assert refused(body, features=(feature,)) is None
    assert refused(body, features=others) == 403
    for owned in ((), others):
        with pytest.raises(ProxyRefused) as told:
            request_policy.check_request(
                json.dumps(body).encode(), may_search=False, is_open=False, features=owned
            )
        setting = json.dumps({"model_features": [*owned, feature]})
        assert (
            f"the owner may allow it: andy groups config FOLDER --set '{setting}'"
            in told.value.refusal.message
        )
    everything = get_args(ModelFeature)
    assert refused({"service_tier": "priority"}, features=everything) == 403
    assert refused({"context_management": {"edits": [{"type": "summarise"}]}}, features=everything) == 403


@pytest.mark.parametrize(
    "block", [{"Type": "url"}, {"type": "image", "Source": {"type": "url"}}, {"URL": "x"}]
)
def test_a_member_whose_name_a_reader_could_take_for_another_does_not_pass(block: object) -> None:
    assert refused(said(block)) == 400


def test_a_long_conversation_has_few_parts_whatever_is_written_in_it() -> None:
    assert refused(said({"type": "text", "text": '{"a": [1, 2]}, ' * 200_000})) is None
