"""Schemas as people write them, or have pydantic write them, each with some valid values."""

CONTACT = {  # pydantic: nested models, Optional, Literal, defaults
    "$defs": {
        "Address": {
            "properties": {
                "street": {"title": "Street", "type": "string"},
                "zip": {"pattern": "^[0-9]{5}$", "title": "Zip", "type": "string"},
                "country": {"default": "DE", "enum": ["DE", "FR", "NL"], "title": "Country", "type": "string"}},
            "required": ["street", "zip"], "title": "Address", "type": "object"},
        "Kind": {"enum": ["private", "work"], "title": "Kind", "type": "string"}},
    "properties": {
        "name": {"maxLength": 40, "minLength": 1, "title": "Name", "type": "string"},
        "age": {"anyOf": [{"maximum": 150, "minimum": 0, "type": "integer"}, {"type": "null"}], "default": None, "title": "Age"},
        "address": {"anyOf": [{"$ref": "#/$defs/Address"}, {"type": "null"}], "default": None},
        "kind": {"$ref": "#/$defs/Kind", "default": "private", "description": "Where from."},
        "tags": {"items": {"type": "string"}, "title": "Tags", "type": "array"},
        "born": {"format": "date", "title": "Born", "type": "string"},
        "scores": {"additionalProperties": {"exclusiveMinimum": 0, "type": "number"}, "title": "Scores", "type": "object"}},
    "required": ["name", "tags"], "title": "Contact", "type": "object"}

PETS = {  # pydantic: a discriminated union
    "$defs": {
        "Cat": {"properties": {"kind": {"const": "cat", "title": "Kind", "type": "string"}, "lives": {"title": "Lives", "type": "integer"}},
                "required": ["kind", "lives"], "title": "Cat", "type": "object"},
        "Dog": {"properties": {"kind": {"const": "dog", "title": "Kind", "type": "string"}, "good": {"title": "Good", "type": "boolean"}},
                "required": ["kind", "good"], "title": "Dog", "type": "object"}},
    "properties": {
        "pets": {"items": {"discriminator": {"mapping": {"cat": "#/$defs/Cat", "dog": "#/$defs/Dog"}, "propertyName": "kind"},
                           "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}]},
                 "title": "Pets", "type": "array"},
        "at": {"maxItems": 2, "minItems": 2, "prefixItems": [{"type": "number"}, {"type": "number"}], "title": "At", "type": "array"}},
    "required": ["pets", "at"], "title": "Home", "type": "object"}

TREE = {  # pydantic: a model that refers to itself
    "$defs": {"Node": {
        "properties": {"value": {"title": "Value", "type": "integer"},
                       "children": {"default": [], "items": {"$ref": "#/$defs/Node"}, "title": "Children", "type": "array"},
                       "parent": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}], "default": None}},
        "required": ["value"], "title": "Node", "type": "object"}},
    "$ref": "#/$defs/Node"}

OLD_PYDANTIC = {  # version 1: definitions, allOf around a $ref
    "title": "Order", "type": "object",
    "properties": {"id": {"title": "Id", "type": "string", "format": "uuid"},
                   "status": {"default": "new", "allOf": [{"$ref": "#/definitions/Status"}]},
                   "price": {"title": "Price", "exclusiveMinimum": 0, "maximum": 9999.99, "type": "number"},
                   "made": {"title": "Made", "type": "string", "format": "date-time"}},
    "required": ["id", "price"],
    "definitions": {"Status": {"title": "Status", "description": "An enumeration.", "enum": ["new", "paid", "sent"], "type": "string"}}}

MATH = {  # OpenAI's guide: chain of thought
    "type": "object",
    "properties": {
        "steps": {"type": "array", "items": {
            "type": "object", "properties": {"explanation": {"type": "string"}, "output": {"type": "string"}},
            "required": ["explanation", "output"], "additionalProperties": False}},
        "final_answer": {"type": "string"}},
    "required": ["steps", "final_answer"], "additionalProperties": False}

UI = {  # OpenAI's guide: "#" refers to the whole
    "type": "object",
    "properties": {
        "type": {"type": "string", "description": "The type of the UI component", "enum": ["div", "button", "header", "field"]},
        "label": {"type": "string"},
        "children": {"type": "array", "description": "Nested UI components", "items": {"$ref": "#"}},
        "attributes": {"type": "array", "items": {
            "type": "object", "properties": {"name": {"type": "string"}, "value": {"type": "string"}},
            "additionalProperties": False, "required": ["name", "value"]}}},
    "required": ["type", "label", "children", "attributes"], "additionalProperties": False}

LINKED_LIST = {  # OpenAI's guide
    "type": "object",
    "properties": {"linked_list": {"$ref": "#/$defs/linked_list_node"}},
    "$defs": {"linked_list_node": {
        "type": "object",
        "properties": {"value": {"type": "number"}, "next": {"anyOf": [{"$ref": "#/$defs/linked_list_node"}, {"type": "null"}]}},
        "additionalProperties": False, "required": ["next", "value"]}},
    "additionalProperties": False, "required": ["linked_list"]}

WEATHER = {  # a tool's parameters
    "type": "object",
    "properties": {"location": {"type": "string", "description": "The city and state, e.g. San Francisco, CA"},
                   "unit": {"type": ["string", "null"], "enum": ["celsius", "fahrenheit", None]},
                   "days": {"type": "integer", "minimum": 1, "maximum": 14, "default": 3}},
    "required": ["location"]}

SEARCH = {  # OpenAPI 3.0
    "type": "object",
    "properties": {"query": {"type": "string", "nullable": True, "maxLength": 100},
                   "limit": {"type": "integer", "format": "int32", "minimum": 1, "example": 3},
                   "filters": {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "string"}}},
                   "since": {"type": "string", "format": "date-time", "nullable": True}},
    "required": ["query"]}

CALLS = {  # one of several tools
    "anyOf": [{"type": "object", "properties": {"name": {"const": name}, "arguments": arguments},
               "required": ["name", "arguments"], "additionalProperties": False}
              for name, arguments in (("weather", WEATHER), ("now", {"type": "object", "properties": {}}), ("search", SEARCH))]}

EXTRACTION = {"type": "array", "minItems": 1, "maxItems": 8, "items": {
    "type": "object",
    "properties": {"entity": {"type": "string"}, "label": {"enum": ["PER", "ORG", "LOC"]}, "span": {
        "type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 2, "maxItems": 2},
        "confidence": {"type": "number", "minimum": 0, "maximum": 1}},
    "required": ["entity", "label", "span"], "additionalProperties": False}}

EXTENDED = {  # allOf as inheritance
    "definitions": {"base": {"type": "object", "properties": {"id": {"type": "integer"}, "note": {"type": "string"}}, "required": ["id"]}},
    "allOf": [{"$ref": "#/definitions/base"}, {"type": "object", "properties": {"size": {"type": "number"}, "note": {"maxLength": 9}},
                                               "required": ["size"]}]}

REAL = {
    "contact": (CONTACT, [
        {"name": "Ann", "tags": []},
        {"name": "Bo", "age": 150, "address": {"street": "A 1", "zip": "01234", "country": "FR"}, "kind": "work", "tags": ["x", "y"],
         "born": "2024-02-29", "scores": {"chess": 0.5, "go": 1200}},
        {"name": "C", "age": None, "address": None, "tags": ["é\n"], "scores": {}}]),
    "pets": (PETS, [{"pets": [], "at": [1, -2.5]}, {"pets": [{"kind": "dog", "good": True}, {"kind": "cat", "lives": 9}], "at": [0, 0]}]),
    "tree": (TREE, [{"value": 1}, {"value": -1, "children": [{"value": 2, "children": [], "parent": None}, {"value": 3}]},
                    {"value": 0, "parent": {"value": 1}}]),
    "old pydantic": (OLD_PYDANTIC, [{"id": "123e4567-e89b-12d3-a456-426614174000", "price": 9999.99},
                                    {"id": "123E4567-E89B-12D3-A456-426614174000", "status": "paid", "price": 0.01, "made": "2024-12-31T23:59:59Z"}]),
    "math": (MATH, [{"steps": [{"explanation": "8x = -30 \u2212 7", "output": "8x = -37"}], "final_answer": "x = -4.625"}]),
    "ui": (UI, [{"type": "div", "label": "", "children": [{"type": "button", "label": "OK", "children": [], "attributes": []}],
                 "attributes": [{"name": "id", "value": "1"}]}]),
    "linked list": (LINKED_LIST, [{"linked_list": {"value": 1, "next": {"value": 2.5e-7, "next": None}}}]),
    "weather": (WEATHER, [{"location": "Paris"}, {"location": "Paris", "unit": None, "days": 14}, {"location": "", "unit": "celsius"}]),
    "search": (SEARCH, [{"query": None}, {"query": "q", "limit": 1, "filters": {"a": ["b"], "c": []}, "since": "2020-01-01T00:00:00+00:00"}]),
    "calls": (CALLS, [{"name": "now", "arguments": {}}, {"name": "weather", "arguments": {"location": "x", "days": 1}}]),
    "extraction": (EXTRACTION, [
        [{"entity": "ACME", "label": "ORG", "span": [0, 4], "confidence": 0.987}, {"entity": "", "label": "PER", "span": [7, 7]}]]),
    "extended": (EXTENDED, [{"id": 1, "note": "123456789", "size": 1.5}, {"id": 1, "size": 0}]),
    "any": ({}, [None, 1, -1.5e300, "x", [], {}, [{"a": [1, {"b": {}}]}]]),
    "object": ({"type": "object"}, [{}, {"a": 1, "b": {"c": [None, True]}}]),
}
