"""What stage 1 is compared with: lxml, elementpath and Saxon, evaluating XPaths that give the same bindings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec

import elementpath
from lxml import etree

from bench.stage1_workload import LARGE, xpaths
from bench.timing import Way
from common.xml import xml_parser
from xscl.algebra.joins import Conjunct

_PARSER = xml_parser(elements_only=True)


def baselines(kind: str, conjuncts: Sequence[Conjunct], texts: Sequence[bytes]) -> tuple[int | None, dict[str, Way]]:
    """The number of XPaths that give the bindings of all patterns, and the ways to evaluate them that can handle so
    many patterns."""
    most = {
        "lxml_xpath": 1000,
        "saxon": 100 if find_spec("saxonche") else 0,
        "elementpath": 0 if kind in LARGE else 10,
    }
    fit = [name for name, number in most.items() if len(conjuncts) <= number]
    if not fit:
        return None, {}
    paths, namespaces = xpaths(conjuncts)
    return len(paths), {name: _MAKERS[name](paths, namespaces, texts) for name in fit}


def _lxml_xpath(paths: Sequence[str], namespaces: dict[str, str], texts: Sequence[bytes]) -> Way:
    compiled = [etree.XPath(path, namespaces=namespaces) for path in paths]

    def run() -> None:
        for text in texts:
            root = etree.fromstring(text, _PARSER)
            for path in compiled:
                path(root)

    return run


def _elementpath(paths: Sequence[str], namespaces: dict[str, str], texts: Sequence[bytes]) -> Way:
    selectors = [elementpath.Selector(path, namespaces=namespaces) for path in paths]

    def run() -> None:
        for text in texts:
            tree = etree.fromstring(text, _PARSER).getroottree()
            for selector in selectors:
                selector.select(tree)

    return run


def _saxon(paths: Sequence[str], namespaces: dict[str, str], texts: Sequence[bytes]) -> Way:
    from saxonche import PySaxonProcessor  # installed only for the benchmark

    processor = PySaxonProcessor(license=False)  # a new one each time: what an old one collected slows it down
    evaluator = processor.new_xpath_processor()
    for prefix, uri in namespaces.items():
        evaluator.declare_namespace(prefix, uri)
    evaluator.set_caching(True)  # its way to keep compiled XPaths

    def run() -> None:
        for text in texts:
            evaluator.set_context(xdm_item=processor.parse_xml(xml_text=text.decode()))
            for path in paths:
                evaluator.evaluate(path)

    return run


_MAKERS: dict[str, Callable[[Sequence[str], dict[str, str], Sequence[bytes]], Way]] = {
    "lxml_xpath": _lxml_xpath,
    "saxon": _saxon,
    "elementpath": _elementpath,
}
