"""Settings for language model backends: request fields, prompts, caching, guards, routes."""

from tierwall.resources.kinds.agentgateway.prompt_guard import prompt_guard
from tierwall.resources.kinds.agentgateway.scalars import cel_expression, short_string
from tierwall.resources.schema import (
    any_value,
    array,
    at_least_one_of,
    boolean,
    enum,
    integer,
    mapping,
    obj,
    optional,
    required,
    string,
)

_values = array(obj(required("field", short_string), required("value", any_value())), min_items=1, max_items=64)
field_transformations = array(
    obj(required("field", short_string), required("expression", cel_expression)), min_items=1, max_items=64
)
_messages = array(obj(required("role", string()), required("content", string())))

ai = obj(
    optional("prompt", obj(optional("prepend", _messages), optional("append", _messages))),
    optional("promptGuard", prompt_guard),
    optional("defaults", _values),
    optional("overrides", _values),
    optional("transformations", field_transformations),
    optional("finalTransformations", field_transformations),
    optional("modelAliases", mapping(string(), max_properties=64)),
    optional(
        "promptCaching",
        obj(
            optional("cacheSystem", boolean(default=True)),
            optional("cacheMessages", boolean(default=True)),
            optional("cacheTools", boolean(default=False)),
            optional("minTokens", integer(minimum=0, default=1024)),
            optional("cacheMessageOffset", integer(minimum=0, default=0)),
        ),
    ),
    optional(
        "routes",
        mapping(
            enum(
                "AnthropicTokenCount",
                "Completions",
                "Detect",
                "Embeddings",
                "GeminiCountTokens",
                "GenerateContent",
                "Messages",
                "Models",
                "Passthrough",
                "Realtime",
                "Rerank",
                "Responses",
            )
        ),
        "From a path's ending to the kind of traffic it carries.",
    ),
    at_least_one_of(
        "defaults",
        "finalTransformations",
        "modelAliases",
        "overrides",
        "prompt",
        "promptCaching",
        "promptGuard",
        "routes",
        "transformations",
    ),
    title="BackendAI",
)
