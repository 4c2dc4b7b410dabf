"""The builder: recipes with fields produce the text of a query, which is tried on stored documents before subscribing.
If it finds nothing, the funnel of the trial determines the fields to widen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Depends, Request
from fastapi.responses import HTMLResponse, Response

from common.errors import InputError
from mmqjp.backtest import Backtest, a_day, days_of, novelty
from mmqjp.explain.terms import FunnelStage
from mmqjp.queries.recipes import RECIPES, BadRecipe, Recipe, RecipeField, fitting_recipe, recipe_named
from mmqjp.service.sql_question import BACKTEST
from mmqjp.web.areas.feeds import feed_page
from mmqjp.web.site import Link, Site, form_values, segment

LINKS = (Link("/build", "Build", 15),)

GIVEN = ("feed", "words", "author")  # what is known of an item from which a query is built


@dataclass(frozen=True, slots=True)
class FieldView:
    """A field of a recipe: its label, default, hint, and the labels of its choices by value."""

    name: str
    label: str
    default: str
    hint: str
    choices: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RecipeView:
    """A recipe: a sentence in which $NAME stands for a field."""

    name: str
    title: str
    sentence: str
    fields: Sequence[FieldView]


@dataclass(frozen=True, slots=True)
class Built:
    """The text of a query."""

    text: str


@dataclass(frozen=True, slots=True)
class Widening:
    """The stage that nothing passes (None if there are only stories on fewer sites), and the fields to widen."""

    stage: FunnelStage | None
    fields: Sequence[RecipeField]


def widenings(recipe: Recipe, values: Mapping[str, str], trial: Backtest) -> Iterator[Widening]:
    for funnel in (funnel for one in trial.funnels for funnel in one.funnels):
        stage = funnel.failed
        fields = recipe.to_widen(values, stage.kind if stage else "found", stage.part if stage else "")
        if stage or fields:
            yield Widening(stage, fields)


def _recipe_view(recipe: Recipe) -> RecipeView:
    fields = [FieldView(one.name, one.label, one.default, one.hint, one.choices) for one in recipe.all_fields]
    return RecipeView(recipe.name, recipe.title, recipe.sentence, fields)


BuildStep = Literal["text", "try", "subscribe"]
_Values = Annotated[dict[str, str], Body(description="Values of its fields; missing ones get their defaults.")]


def builder_router(site: Site, routes: APIRouter) -> None:
    def page(
        request: Request, recipe: Recipe | None, given: Mapping[str, str], status: int = 200, **found: Any
    ) -> Response:
        known = {key: given[key] for key in GIVEN if given.get(key)}
        context: dict[str, Any] = {"recipes": RECIPES, "recipe": recipe, "known": known, "text": "", "error": ""}
        context |= {"wrong": {}, "trial": None, "backfill": bool(given.get("backfill")), "values": given}
        if recipe is not None:
            values = {**recipe.defaults, **given}
            context |= {"values": values, "feeds": [row.url for row in feed_page(site).rows]}
            try:
                context["text"] = recipe.script(values)
            except BadRecipe as error:
                context["wrong"] = error.fields
                status = 400 if request.method == "POST" else status
        return site.render(request, "build.html", status, **context | found)

    @routes.get("/build", response_class=HTMLResponse)
    def form(request: Request) -> Response:
        given = dict(request.query_params)
        try:
            recipe = recipe_named(name) if (name := given.pop("recipe", "")) else fitting_recipe(given)
        except BadRecipe as error:
            return page(request, None, given, 404, error=str(error))
        return page(request, recipe, given)

    @routes.post("/build", response_class=HTMLResponse)
    def submit(request: Request, given: Annotated[dict[str, str], Depends(form_values)]) -> Response:
        recipe = recipe_named(given.pop("recipe", ""))
        do = given.pop("do", "text")
        if do == "text":
            return page(request, recipe, given)
        try:
            text = recipe.script(given)
            if do == "try":
                with site.slow():
                    trial = Backtest.from_dict(site.ask(BACKTEST, {"text": text}))
                summary = {"cost": novelty(trial.novelty), "a_day": a_day(trial), "days": days_of(trial)}
                widen = list(widenings(recipe, given, trial))
                return page(request, recipe, given, trial=trial, summary=summary, widen=widen)
            site.ask("subscribe", {"text": text, "add": False, "backfill": bool(given.get("backfill"))})
        except BadRecipe:
            return page(request, recipe, given)
        except InputError as error:
            return page(request, recipe, given, 400, error=str(error))
        name = recipe.pieces(given)["name"]
        return site.show(f"/q/{segment(name)}", f"{name}: subscribed")

    @routes.get("/api/v1/recipes", tags=["queries"], summary="List the recipes that build queries")
    def recipes() -> list[RecipeView]:
        return list(map(_recipe_view, RECIPES.values()))

    @routes.post("/api/v1/recipes/{name}", tags=["queries"], summary="Build the text of a query from a recipe")
    def build(name: str, values: _Values) -> Built:
        recipe = recipe_named(name)
        if unknown := sorted(values.keys() - recipe.defaults.keys()):
            raise BadRecipe(f"{name} has no field {unknown[0][:100]!r}; it has {', '.join(recipe.defaults)}")
        return Built(recipe.script(values))


ROUTERS = (builder_router,)
