"""Programs for SGLang's own frontend, and what came out of them, as JSON on the last line.

Run by an interpreter that has sglang, which need not be the one that runs the tests:

    python sglang_programs.py URL [NAME ...]

Each program is told by the name of its function; without names all of them run, at the same time.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import sglang as sgl
from sglang.lang.choices import (
    greedy_token_selection,
    token_length_normalized,
    unconditional_likelihood_normalized,
)
from sglang.lang.ir import REGEX_FLOAT, REGEX_INT, REGEX_STR

METHODS = {
    "token_length_normalized": token_length_normalized,
    "greedy_token_selection": greedy_token_selection,
    "unconditional_likelihood_normalized": unconditional_likelihood_normalized,
}


def few_shot_qa() -> Any:
    @sgl.function
    def program(s, question):
        s += "These are questions with their answers.\n\n"
        s += "Q: What is the capital of France?\nA: Paris\n"
        s += "Q: What is the capital of Italy?\nA: Rome\n"
        s += "Q: " + question + "\n"
        s += "A:" + sgl.gen("answer", max_tokens=8, stop="\n", temperature=0)

    single = program.run(question="What is the capital of Germany?")
    rows = [{"question": f"What is the capital of {c}?"} for c in ("Germany", "Japan", "Spain")]
    states = program.run_batch(rows, temperature=0, num_threads=3, progress_bar=False)
    return {"single": single["answer"], "batch": [state["answer"] for state in states]}


def mt_bench() -> Any:
    @sgl.function
    def program(s, question_1, question_2):
        s += sgl.system("You are a helpful assistant.")
        s += sgl.user(question_1)
        s += sgl.assistant(sgl.gen("answer_1"))
        with s.user():
            s += question_2
        with s.assistant():
            s += sgl.gen("answer_2")

    state = program.run(
        question_1="Tell me of a trip to Hawaii.",
        question_2="Now begin each sentence with an A.",
        temperature=0.7,
        max_new_tokens=16,
    )
    answers = [state["answer_1"], state["answer_2"]]
    return {"messages": state.messages(), "answers": answers, "text": state.text()}


def select() -> Any:
    @sgl.function
    def program(s, statement, method):
        s += "Say whether each statement is True, False, or Unknown.\n"
        s += "Statement: The capital of France is Berlin.\nAnswer: False\n"
        s += "Statement: The capital of Italy is Rome.\nAnswer: True\n"
        s += "Statement: " + statement + "\nAnswer: "
        s += sgl.select("answer", ["True", "False", "Unknown"], choices_method=method)

    told = {}
    for name, method in METHODS.items():
        state = program.run(statement="The capital of Germany is Berlin.", method=method)
        info = state.get_meta_info("answer")
        told[name] = {
            "answer": state["answer"],
            "end": state.text()[-8:],
            "normalized": info["normalized_prompt_logprobs"],
            "inputs": info["input_token_logprobs"],
            "unconditional": info.get("unconditional_token_logprobs"),
        }
    return told


def select_in_a_batch() -> Any:
    @sgl.function
    def program(s, question, choices):
        s += "Removing ice: a man scrapes the window of his car.\n\n" + question
        s += sgl.select("answer", choices=choices)

    rows = [
        {"question": f"Baking: a cake for {n}. ", "choices": [f"She eats {n}.", f"It burns {n}!"]}
        for n in range(6)
    ]
    states = program.run_batch(rows, temperature=0, num_threads=6, progress_bar=False)
    return [row["choices"].index(state["answer"]) for row, state in zip(rows, states)]  # noqa: B905


def decode_int() -> Any:
    @sgl.function
    def program(s):
        s += "The number of hours in a day is " + sgl.gen_int("hours") + "\n"
        s += "The number of days in a week is " + sgl.gen_int("days") + "\n"

    state = program.run(temperature=0, max_new_tokens=16)
    return [state["hours"], state["days"]]


def decode_json_regex() -> Any:
    @sgl.function
    def program(s):
        s += "A JSON object with facts about the city of Paris:\n"
        with s.var_scope("json_output"):
            s += "{\n"
            s += '  "name": ' + sgl.gen(regex=REGEX_STR, max_tokens=16) + ",\n"
            s += '  "population": ' + sgl.gen(regex=REGEX_INT, stop=[" ", "\n"]) + ",\n"
            s += '  "area": ' + sgl.gen(regex=REGEX_INT, stop=[" ", "\n"]) + ",\n"
            s += '  "latitude": ' + sgl.gen(regex=REGEX_FLOAT, stop=[" ", "\n"]) + "\n"
            s += "}"

    return program.run(temperature=0.0, max_new_tokens=16)["json_output"]


def decode_json() -> Any:
    @sgl.function
    def program(s):
        s += "A JSON object with facts about the city of Paris:\n"
        with s.var_scope("json_output"):
            s += "{\n"
            s += '  "name": ' + sgl.gen_string() + ",\n"
            s += '  "population": ' + sgl.gen_int() + ",\n"
            s += '  "area": ' + sgl.gen(dtype=int) + ",\n"
            s += '  "country": ' + sgl.gen_string() + ",\n"
            s += '  "timezone": ' + sgl.gen(dtype=str) + "\n"
            s += "}"

    return program.run(max_new_tokens=24)["json_output"]


def json_schema() -> Any:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "pattern": "^[A-Z][a-z]{1,9}$"},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    }

    @sgl.function
    def program(s):
        s += "A person as JSON: " + sgl.gen("person", json_schema=json.dumps(schema))

    return program.run(max_new_tokens=48)["person"]


def expert_answer() -> Any:
    @sgl.function
    def program(s, question):
        s += "Question: " + question + "\n"
        s += "A good person to answer it is"
        s += sgl.gen("expert", stop=[".", "\n"], max_tokens=16) + ".\n"
        s += "For example," + s["expert"] + " would say that "
        s += sgl.gen("answer", stop=".", max_tokens=16) + "."

    state = program.run(question="What is the capital of France?", temperature=0.1)
    return {"expert": state["expert"], "answer": state["answer"], "text": state.text()}


def tool_use() -> Any:
    @sgl.function
    def program(s, left, right):
        s += "Use the calculator: calculate(1+2)=3, calculate(3*4)=12.\n"
        s += f"Question: What is the product of {left} and {right}?\n"
        s += "Answer: calculate(" + sgl.gen("expression", stop=")", max_tokens=16) + ") = "
        with s.var_scope("answer"):
            s += str(left * right)

    state = program.run(left=25, right=98, temperature=0)
    return {"expression": state["expression"], "answer": state["answer"]}


def react() -> Any:
    @sgl.function
    def program(s, question):
        s += "Question: Who made Linux?\nThought 1: I search.\nAction 1: Search [Linux].\n"
        s += "Observation 1: It was Linus Torvalds.\nAction 2: Finish [Linus Torvalds].\n\n"
        s += "Question: " + question + "\n"
        for i in range(1, 4):
            s += f"Thought {i}:" + sgl.gen(stop=[".", "\n"], max_tokens=12) + ".\n"
            s += f"Action {i}: " + sgl.select(f"action_{i}", ["Search", "Finish"])
            if s[f"action_{i}"] == "Finish":
                break
            s += " [" + sgl.gen(stop="]", max_tokens=8) + "].\n"
            s += f"Observation {i}:" + sgl.gen(stop=[".", "\n"], max_tokens=12) + ".\n"

    state = program.run(question="Who made Python?", temperature=0.1)
    return {"actions": [state[f"action_{1}"]], "text": state.text()}


def parallel_decoding() -> Any:
    @sgl.function
    def program(s, topic):
        s += "USER: Give some tips for " + topic + ".\nASSISTANT: Here are 3 short tips:\n"
        for i in range(1, 4):
            s += f"{i}." + sgl.gen(max_tokens=8, stop=[".", "\n"]) + ".\n"
        forks = s.fork(3)
        for i in range(3):
            forks[i] += f"Now I say more of tip {i + 1}:\nTip {i + 1}:"
            forks[i] += sgl.gen("detailed_tip", 16, stop=["\n\n"])
        forks.join()
        s += "The tips in detail:\n"
        for i in range(3):
            s += f"Tip {i + 1}:" + forks[i]["detailed_tip"] + "\n"
        s += "\nIn summary," + sgl.gen("summary", max_tokens=16)

    state = program.run(topic="writing a good blog post", temperature=0.3)
    return {"summary": state["summary"], "text": state.text()}


def parallel_encoding() -> Any:
    contexts = [f"{father} is the father of {child}." for father, child in
                [("Ethan", "Liam"), ("Noah", "Julian"), ("Oliver", "Carlos")]]  # fmt: skip

    @sgl.function
    def program(s, question):
        s += "USER: I will ask a question about some statements.\n"
        forks = s.fork(len(contexts))
        forks += lambda i: f"Statement {i}: " + contexts[i] + "\n"
        forks.join(mode="concate_and_append")
        s += "\nQuestion: " + question + "\n"
        s += "ASSISTANT:" + sgl.gen("answer", max_tokens=16)

    state = program.run(question="Who is the father of Julian?", temperature=0)
    return {"answer": state["answer"], "text": state.text(), "contexts": contexts}


def stream() -> Any:
    @sgl.function
    def program(s, question):
        s += sgl.system("You are a helpful assistant.")
        s += sgl.user(question)
        s += sgl.assistant(sgl.gen("answer", max_tokens=16))

    state = program(question="Tell me of a trip to Hawaii.", stream=True, temperature=0)
    text = list(state.text_iter())
    again = program(question="Tell me of a trip to Hawaii.", stream=True, temperature=0)
    answer = list(again.text_iter("answer"))
    return {
        "text": text,
        "whole": state.text(),
        "answer": answer,
        "value": again["answer"],
        "meta": again.get_meta_info("answer"),
        "unstreamed": program(question="Tell me of a trip to Hawaii.", temperature=0)["answer"],
    }


def regex() -> Any:
    pattern = r"((25[0-5]|2[0-4]\d|[01]?\d\d?).){3}(25[0-5]|2[0-4]\d|[01]?\d\d?)"

    @sgl.function
    def program(s):
        s += "Q: What is the IP address of the Google DNS servers?\nA: "
        s += sgl.gen("answer", temperature=0, regex=pattern)

    return {"answer": program.run()["answer"], "pattern": pattern}


def dtype_gen() -> Any:
    @sgl.function
    def program(s):
        s += "Q: What is the full name of DNS?\nA: It is "
        s += sgl.gen("str", dtype=str, stop="\n") + "\n"
        s += "Q: In which year was it invented?\nA: " + sgl.gen("int", dtype=int) + "\n"
        s += "Q: What is the value of pi?\nA: " + sgl.gen("float", dtype=float) + "\n"
        s += "Q: Is the sky blue?\nA: " + sgl.gen("bool", dtype=bool) + "\n"

    state = program.run(max_new_tokens=24)
    return {name: state[name] for name in ("str", "int", "float", "bool")}


def min_tokens() -> Any:
    @sgl.function
    def program(s):
        s += sgl.user("What is the capital of France?")
        s += sgl.assistant(sgl.gen("answer", min_tokens=12, max_tokens=16))

    state = program.run()
    return state.get_meta_info("answer")


def log_probabilities() -> Any:
    @sgl.function
    def program(s):
        s += "The capital of France is"
        s += sgl.gen(
            "answer",
            max_tokens=4,
            temperature=0,
            return_logprob=True,
            logprob_start_len=0,
            top_logprobs_num=2,
            return_text_in_logprobs=True,
        )

    state = program.run()
    return {"answer": state["answer"], "meta": state.get_meta_info("answer")}


def administration() -> Any:
    backend = sgl.global_config.default_backend
    backend.cache_prefix("A prefix that is used again and again.")
    told = backend.get_server_info()
    backend.flush_cache()
    return {"model": backend.get_model_name(), "context": told["context_length"]}


def refused() -> Any:
    @sgl.function
    def program(s):
        s += "Hello" + sgl.gen("answer", max_tokens=4, top_p=5.0)

    return str(program.run().error())


PROGRAMS = [
    *(few_shot_qa, mt_bench, select, select_in_a_batch, decode_int, decode_json_regex),
    *(decode_json, json_schema, expert_answer, tool_use, react, parallel_decoding),
    *(parallel_encoding, stream, regex, dtype_gen, min_tokens, log_probabilities),
    *(administration, refused),
]


def main() -> None:
    """Run the programs that are asked for."""
    url, *names = sys.argv[1:]
    backend = sgl.RuntimeEndpoint(url, chat_template_name="chatml")
    sgl.set_default_backend(backend)
    chosen = [program for program in PROGRAMS if not names or program.__name__ in names]
    with ThreadPoolExecutor(len(chosen)) as threads:
        told = list(threads.map(lambda program: program(), chosen))
    print(json.dumps(dict(zip((program.__name__ for program in chosen), told))))  # noqa: B905


if __name__ == "__main__":
    main()
