"""Saxon as a reference: an implementation of XPath that shares nothing with ours, called for many values at once."""

import json
from collections.abc import Sequence

from saxonche import PySaxonProcessor

Value = str | float | None

_PROCESSOR = PySaxonProcessor(license=False)

# XPath 1.0's number() and string() of a number, in XQuery: casts have exponents and INF, which 1.0 has not.
_PROLOG = r"""
declare variable $json as xs:string external;
declare function local:number($text as xs:string) as xs:double {
  if (matches($text, '^[ \t\r\n]*-?([0-9]+(\.[0-9]*)?|\.[0-9]+)[ \t\r\n]*$')) then number($text) else number('NaN')
};
declare function local:digits($number as xs:double) as xs:string {
  let $parts := tokenize(string($number), 'E'), $digits := translate($parts[1], '.', ''),
      $point := string-length(substring-before($parts[1] || '.', '.')) + xs:integer(($parts[2], '0')[1])
  return if ($point <= 0) then '0.' || string-join((1 to -$point) ! '0') || replace($digits, '0+$', '')
         else replace(substring($digits, 1, $point) || '.' || substring($digits, $point + 1), '0+$', '')
};
declare function local:string($value as item()*) as xs:string {
  if (not($value[1] instance of xs:double)) then string($value[1])
  else if ($value = 0) then '0'
  else if (string($value) = ('INF', '-INF')) then replace(string($value), 'INF', 'Infinity')
  else if (string($value) = 'NaN') then 'NaN'
  else if ($value = floor($value)) then string(xs:decimal($value))
  else (if ($value < 0) then '-' else '') || local:digits(abs($value))
};
declare function local:compare($left, $op as xs:string, $right) as xs:boolean {
  if ($op = ('=', '!=') and $left instance of xs:string and $right instance of xs:string)
  then if ($op = '=') then $left = $right else $left != $right
  else let $a := if ($left instance of xs:string) then local:number($left) else $left,
           $b := if ($right instance of xs:string) then local:number($right) else $right
       return switch ($op) case '=' return $a = $b case '!=' return $a != $b case '<' return $a < $b
              case '<=' return $a <= $b case '>' return $a > $b default return $a >= $b
};
declare function local:any($lefts as item()*, $op as xs:string, $rights as item()*) as xs:boolean {
  some $left in $lefts, $right in $rights satisfies local:compare(local:atom($left), $op, local:atom($right))
};
declare function local:time($text as xs:string) as xs:dateTime? {
  let $given := upper-case(normalize-space($text)),
      $text := $given || (if (contains($given, 'T')) then '' else 'T00:00:00')
  return if (not($text castable as xs:dateTime)) then ()
         else let $time := xs:dateTime($text)
              return if (exists(timezone-from-dateTime($time))) then $time
                     else adjust-dateTime-to-timezone($time, xs:dayTimeDuration('PT0S'))
};
declare function local:compare-times($left as xs:string, $op as xs:string, $right as xs:string) as xs:boolean {
  let $a := local:time($left), $b := local:time($right)
  return if (empty($a) or empty($b)) then $op = '!='
         else switch ($op) case '=' return $a = $b case '!=' return $a != $b case '<' return $a < $b
              case '<=' return $a <= $b case '>' return $a > $b default return $a >= $b
};
declare function local:any-times($lefts as item()*, $op as xs:string, $rights as item()*) as xs:boolean {
  some $left in $lefts, $right in $rights satisfies local:compare-times(string($left), $op, string($right))
};
declare function local:atom($item as item()) { if ($item instance of node()) then string($item) else $item };
"""


def saxon(expression: str, cases: Sequence[Sequence[Value]]) -> list[str]:
    """The string value of an XPath expression for each case, whose values are `$c(1)`, `$c(2)`, ... What cannot be
    evaluated gives "error" and the code of the error."""
    body = (
        f"for $c in parse-json($json)?* return try {{ string({expression}) }} "
        f"catch * {{ 'error ' || local-name-from-QName($err:code) }}"
    )
    return _run(body, json.dumps(cases))


def saxon_of_document(expressions: Sequence[str], xml: str) -> list[str]:
    """The string value of each expression. `$r` is the root element of the document."""
    body = ", ".join(f"string({expression})" for expression in expressions)
    return _run(f"let $r := parse-xml($json)/* return ({body})", xml)


def _run(body: str, text: str) -> list[str]:
    query = _PROCESSOR.new_xquery_processor()
    query.set_query_content(f"{_PROLOG} serialize(array {{ {body} }}, map {{ 'method': 'json' }})")
    query.set_parameter("json", _PROCESSOR.make_string_value(text))
    answer: list[str] = json.loads(str(query.run_query_to_value().head.string_value))
    return answer
