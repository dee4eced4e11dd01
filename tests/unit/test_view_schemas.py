"""The schemas that OpenAPI has of the views of reports."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired, TypedDict

import pytest
from pydantic import ValidationError

from orchestrator.reports.costs import UsageView
from orchestrator.reports.upcoming import UpcomingView
from orchestrator.web.api.lists import RESOURCES
from orchestrator.web.api.schemas import ListPage, RowPage, answer_schema, schema_of


class CrateView(TypedDict):
    """A crate."""

    weight: int


class LabelPart(TypedDict):
    """A label that only Andy's own code reads."""

    text: str


class TruckView(TypedDict):
    """A truck with crates."""

    name: Annotated[str, "What is painted on it."]
    crates: list[CrateView]
    spare: CrateView | None
    label: LabelPart | None
    driver: NotRequired[Annotated[str, "Who drives it."]]


def properties(view: type) -> dict[str, Any]:
    found: dict[str, Any] = schema_of(view).model_json_schema()["properties"]
    return found


def test_a_view_has_one_schema_named_after_it():
    assert schema_of(TruckView).__name__ == "TruckSchema"
    assert schema_of(TruckView) is schema_of(TruckView)
    assert schema_of(TruckView).model_json_schema()["description"] == "A truck with crates."


def test_a_view_within_a_view_is_described_by_its_own_schema():
    found = properties(TruckView)
    assert found["crates"]["items"] == {"$ref": "#/$defs/CrateSchema"}
    assert {"$ref": "#/$defs/CrateSchema"} in found["spare"]["anyOf"]


def test_a_part_is_an_open_object():
    assert {"type": "object", "additionalProperties": True} in properties(TruckView)["label"]["anyOf"]


def test_the_text_of_a_field_is_its_description():
    assert properties(TruckView)["name"]["description"] == "What is painted on it."
    assert properties(TruckView)["driver"]["description"] == "Who drives it."


def test_only_a_field_that_is_not_required_may_be_left_out_or_null():
    truck = {"name": "one", "crates": [], "spare": None, "label": None}
    schema_of(TruckView).model_validate(truck)
    schema_of(TruckView).model_validate({**truck, "driver": None})
    for wrong in ({**truck, "name": None}, {**truck, "colour": "red"}, {"name": "one"}):
        with pytest.raises(ValidationError):
            schema_of(TruckView).model_validate(wrong)


def test_a_field_that_earlier_versions_did_not_send_has_a_default():
    assert properties(UpcomingView)["times"]["default"] == 1
    assert "times" not in schema_of(UpcomingView).model_json_schema()["required"]


def test_usage_by_service_is_described_as_it_is_sent():
    assert {"service", "model"} <= properties(UsageView).keys()


def test_a_list_answers_with_a_page_of_its_rows():
    assert answer_schema(RowPage[CrateView]) is ListPage[schema_of(CrateView)]
    assert answer_schema(CrateView) is schema_of(CrateView)


def test_the_query_and_the_answer_of_a_list_are_those_of_its_handler():
    found = {one.path: (one.query.__name__, one.answer.__name__) for one in RESOURCES}
    assert found["/api/messages"] == ("MessagesQuery", "ListPage[MessageSchema]")
    assert found["/api/usage"] == ("UsageQuery", "UsageDocumentSchema")
