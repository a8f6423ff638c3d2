"""Chat templates in the formats of published models, condensed: markers, roles, tools, reasoning.

They keep what matters to a reader of conversations: which forms a template takes, what it leaves
out, and what it refuses.
"""

_NAMED = "{%- set f = call.function or call %}"


def _chatml(calls: str, content: str = "{{ m.content }}") -> str:
    return (
        "{%- if tools %}<|im_start|>system\n"
        "{{ messages[0].content if messages[0].role == 'system' }}"
        "<tools>{% for t in tools %}\n{{ t | tojson }}{% endfor %}</tools><|im_end|>\n{% endif %}"
        "{%- for m in messages %}"
        "{%- if m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n"
        "</tool_response><|im_end|>\n"
        "{%- elif m.role == 'system' and tools and loop.first %}"
        f"{{%- else %}}<|im_start|>{{{{ m.role }}}}\n{content}"
        f"{{%- for call in m.tool_calls or [] %}}{_NAMED}\n<tool_call>\n{calls}\n</tool_call>"
        "{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
        "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )


_OBJECT = '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}'
_EITHER = (
    '{"name": "{{ f.name }}", "arguments": {% if f.arguments is string %}{{ f.arguments }}'
    "{% else %}{{ f.arguments | tojson }}{% endif %}}"
)
_VISIBLE = (
    "{%- set c = m.content or '' %}{%- set r = m.reasoning_content or '' %}"
    "{%- if '</think>' in c %}{% set c = c.split('</think>')[-1].lstrip('\\n') %}{% endif %}"
    "{%- if loop.last and r %}<think>\n{{ r }}\n</think>\n\n{% endif %}{{ c }}"
)
_XML_CALL = (
    "{{ f.name }}{% for k, v in f.arguments.items() %}\n<arg_key>{{ k }}</arg_key>\n<arg_value>"
    "{{ v if v is string else v | tojson }}</arg_value>{% endfor %}"
)
_PARTS = (
    "{%- macro words(c) %}{% if c is string %}{{ c }}{% else %}{% for p in c or [] %}"
    "{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}{% endif %}{% endmacro %}"
)

TEMPLATES = {
    "qwen2.5": _chatml(_OBJECT),
    "qwen3": _chatml(_EITHER, _VISIBLE),
    "glm": (
        "[gMASK]<sop>{% if tools %}<|system|>\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}"
        f"{{% endif %}}{_PARTS}{{% for m in messages %}}"
        "{%- if m.role == 'user' %}<|user|>\n{{ words(m.content) }}"
        "{%- elif m.role == 'assistant' %}<|assistant|>\n<think></think>"
        "{{ words(m.content).split('</think>')[-1].strip() }}"
        f"{{% for call in m.tool_calls or [] %}}{_NAMED}<tool_call>{_XML_CALL}</tool_call>"
        "{% endfor %}"
        "{%- elif m.role == 'tool' %}<|observation|><tool_response>\n{{ m.content }}\n"
        "</tool_response>{% elif m.role == 'system' %}<|system|>\n{{ words(m.content) }}"
        "{%- endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    ),
    "deepseek-v3": (
        "{%- set ns = namespace(s='') %}{% for m in messages %}{% if m.role == 'system' %}"
        "{% set ns.s = ns.s + m.content %}{% endif %}{% endfor %}<|begin|>{{ ns.s }}"
        "{%- for t in tools or [] %}\n### {{ t.function.name }}{{ t.function.parameters | tojson }}"
        "{% endfor %}{% for m in messages %}"
        "{%- if m.role == 'user' %}<|User|>{{ m.content }}"
        "{%- elif m.role == 'assistant' %}<|Assistant|>{{ m.content or '' }}"
        "{% for call in m.tool_calls or [] %}<|call|>{{ call.type + '<|sep|>' + call.function.name "
        "+ '\n```json\n' + call.function.arguments + '\n```' }}<|end_call|>{% endfor %}<|end|>"
        "{%- elif m.role == 'tool' %}<|output|>{{ m.content }}<|end_output|>{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}<|Assistant|>{% endif %}"
    ),
    "deepseek-r1": (
        "<|begin|>{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% endif %}"
        "{% endfor %}{% for m in messages %}{% if m.role == 'user' %}<|User|>{{ m.content }}"
        "{%- elif m.role == 'assistant' and m.content is defined %}<|Assistant|>"
        "{{ m.content.split('</think>')[-1] }}<|end|>{% endif %}{% endfor %}"
        "{%- if add_generation_prompt %}<|Assistant|><think>\n{% endif %}"
    ),
    "mixtral": (
        "{%- if messages[0].role == 'system' %}{% set s = messages[0].content %}"
        "{% set loop_messages = messages[1:] %}{% else %}{% set loop_messages = messages %}"
        "{% endif %}<s>{% for m in loop_messages %}"
        "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Roles must alternate user/assistant') }}{% endif %}"
        "{%- if m.role == 'user' %} [INST] {{ (s + '\n\n') if loop.first and s is defined }}"
        "{{ m.content }} [/INST]{% else %} {{ m.content }}</s>{% endif %}{% endfor %}"
    ),
    "mistral": (  # the system turn comes with the last turn, if a user has that
        "{%- if messages[0].role == 'system' %}{% set s = messages[0].content %}"
        "{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}<s>"
        "{%- if tools %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
        "{% for m in rest %}{% if m.role == 'user' %}[INST] {{ (s + '\n\n') if loop.last and s is "
        "defined }}{{ m.content }}[/INST]{% elif m.tool_calls %}[TOOL_CALLS] ["
        "{% for call in m.tool_calls %}{% if call.id is not defined or call.id | length != 9 %}"
        "{{ raise_exception('Tool call IDs should be 9 letters and digits') }}{% endif %}"
        "{{ call.function | tojson }}{% endfor %}]</s>"
        "{%- elif m.role == 'assistant' %} {{ m.content | trim }}</s>"
        "{%- elif m.role == 'tool' %}{% if m.tool_call_id is not defined or "
        "m.tool_call_id | length != 9 %}{{ raise_exception('Tool call IDs, too') }}{% endif %}"
        "[TOOL_RESULTS] {{ m.tool_call_id }} {{ m.content }}[/TOOL_RESULTS]"
        "{%- else %}{{ raise_exception('Only user, assistant and tool roles') }}{% endif %}"
        "{% endfor %}"
    ),
    "llama3": (
        "{{ bos_token }}{% for m in messages %}<|start|>{{ m.role if m.role != 'tool' else "
        "'ipython' }}<|end|>\n\n{% if m.tool_calls %}{% if m.tool_calls | length != 1 %}"
        "{{ raise_exception('one tool call at once') }}{% endif %}"
        "{%- set f = m.tool_calls[0].function %}"
        '{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}'
        "{%- elif m.role == 'tool' and m.content is iterable %}{{ m.content | tojson }}"
        "{%- else %}{% if loop.first and tools %}{% for t in tools %}{{ t | tojson(indent=4) }}\n\n"
        "{% endfor %}{% endif %}{{ m.content | trim }}{% endif %}<|eot|>{% endfor %}"
    ),
    "llama4": (
        f"{_PARTS}{{{{ bos_token }}}}{{% if tools %}}{{{{ tools | tojson }}}}{{% endif %}}"
        "{% for m in messages %}<|header|>{{ m.role }}<|end|>\n\n{{ words(m.content) }}"
        "{% for call in m.tool_calls or [] %}[{{ call.function.name }}({% for k, v in "
        "call.function.arguments.items() %}{{ k }}={{ v | tojson }}{% endfor %})]{% endfor %}"
        "<|eot|>{% endfor %}"
    ),
    "gpt-oss": (
        "<|start|>system<|message|>You are a helper.<|end|>{% for m in messages %}"
        "{%- if loop.first and tools %}<|start|>developer<|message|>namespace functions {\n"
        "{% for t in tools %}// {{ t.function.description }}\ntype {{ t.function.name }} = (_: {\n"
        "{% for k, v in t.function.parameters.properties.items() %}{{ k }}: {{ v.type }},"
        "{% endfor %}}) => any;{% endfor %}}<|end|>{% endif %}"
        "{%- if m.role == 'system' %}<|start|>developer<|message|># Instructions\n\n{{ m.content }}"
        "<|end|>{% elif m.role == 'assistant' and m.tool_calls %}<|start|>assistant to=functions."
        "{{ m.tool_calls[0].function.name }}<|channel|>commentary json<|message|>"
        "{{ m.tool_calls[0].function.arguments | tojson }}<|call|>"
        "{%- elif m.role == 'assistant' %}{% if '<|channel|>' in m.content %}"
        "{{ raise_exception('pass reasoning as thinking') }}{% endif %}"
        "{%- if m.thinking and loop.last %}<|start|>assistant<|channel|>analysis<|message|>"
        "{{ m.thinking }}<|end|>{% endif %}<|start|>assistant<|channel|>final<|message|>"
        "{{ m.content }}<|end|>{% elif m.role == 'tool' %}<|start|>functions<|channel|>commentary"
        "<|message|>{{ m.content | tojson }}<|end|>"
        "{%- else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    ),
    "phi": (
        "{% for m in messages %}{% if m.role == 'system' and m.content %}<|system|>\n"
        "{{ m.content }}<|end|>\n{% elif m.role == 'user' %}<|user|>\n{{ m.content }}<|end|>\n"
        "{%- elif m.role == 'assistant' %}<|assistant|>\n{{ m.content }}<|end|>\n{% endif %}"
        "{% endfor %}"
    ),
    "olmoe": (
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ '<|system|>\n' + "
        "m.content + '\n' }}{% elif m.role == 'user' %}{{ '<|user|>\n' + m.content + '\n' }}"
        "{%- elif m.role == 'assistant' %}{{ '<|assistant|>\n' + m.content + eos_token + '\n' }}"
        "{% endif %}{% endfor %}"
    ),
    "granite": (
        "{% if tools %}<|role|>available_tools<|end|>{{ tools | tojson(indent=2) }}\n{% endif %}"
        "{% for m in messages %}<|role|>{{ m.role }}<|end|>{{ m.content }}"
        "{% for call in m.tool_calls or [] %}<|tool_call|>{{ call.function | tojson }}{% endfor %}"
        "\n{% endfor %}"
    ),
    "hunyuan": (
        "{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}{% for m in messages %}"
        "{%- if m.role == 'assistant' %}{% set c = (m.content or '').split('<answer>')[-1]"
        ".split('</answer>')[0].strip() %}{% for call in m.tool_calls or [] %}"
        "{{ '<tool_call>' + call.function.name + '\n' + call.function.arguments }}</tool_call>"
        "{% endfor %}<answer>\n{{ c }}\n</answer><|eos|>"
        "{%- elif m.role == 'tool' %}<tool_response>{{ m.content }}</tool_response>"
        "{%- else %}<|{{ m.role }}|>{{ m.content }}{% endif %}{% endfor %}"
    ),
    "ernie": (
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}User: {{ m.content }}\n"
        "{%- elif m.role == 'assistant' %}Assistant: {{ m.content }}{{ eos_token }}"
        "{%- elif m.role == 'system' %}{{ m.content }}\n{% endif %}{% endfor %}"
    ),
    "kimi": (
        f"{_PARTS}{{% if tools %}}<|im_system|>tool_declare<|im_middle|>{{{{ tools | tojson }}}}"
        "<|im_end|>{% endif %}{% for m in messages %}<|im_{{ m.role }}|>{{ m.name or m.role }}"
        "<|im_middle|>{{ words(m.content) }}{% for call in m.tool_calls or [] %}<|call|>"
        "{{ call.id }}<|args|>{% if call.function.arguments is string %}"
        "{{ call.function.arguments }}{% else %}{{ call.function.arguments | tojson }}{% endif %}"
        "{% endfor %}<|im_end|>{% endfor %}"
    ),
    "minimax": (  # takes parts alone
        "{% for m in messages %}<beginning_of_sentence>{{ m.role }}\n{% for p in m.content or [] "
        "if p.type == 'text' %}{{ p.text }}{% endfor %}<end_of_sentence>\n{% endfor %}"
    ),
}
