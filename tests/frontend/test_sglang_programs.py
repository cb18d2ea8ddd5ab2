"""Programs as they are written for SGLang, under its alias: they run as they stand."""

import asyncio
import json
import re
import threading

import pytest

import lmlang as sgl
from lmlang.testing import RandomBackend, ScriptedBackend

BACKENDS = [
    pytest.param(lambda: RandomBackend(3), id="random"),
    pytest.param(lambda: RandomBackend(3, completes="on a thread"), id="random on a thread"),
    pytest.param(lambda: ScriptedBackend(vision=True), id="scripted"),
    pytest.param(lambda: ScriptedBackend(completes="on a thread"), id="scripted on a thread"),
]


@pytest.fixture(params=BACKENDS)
def backend(request):
    with request.param() as made:
        sgl.set_default_backend(made)
        yield made
        sgl.set_default_backend(None)


def scripted(*answers, **scripted_with):
    made = ScriptedBackend(list(answers), **scripted_with)
    sgl.set_default_backend(made)
    return made


@pytest.fixture(autouse=True)
def no_default_stays():
    yield
    sgl.set_default_backend(None)


# ---------------------------------------------------------------- question answering


@sgl.function
def few_shot_qa(s, question):
    s += "The following are questions with answers.\n\n"
    s += "Q: What is the capital of France?\n"
    s += "A: Paris\n"
    s += "Q: " + question + "\n"
    s += "A:" + sgl.gen("answer", stop="\n", temperature=0)


def test_few_shot_question_answering(backend):
    state = few_shot_qa.run(question="What is the capital of the United States?")
    assert "\n" not in state["answer"]
    assert state.text().endswith("A:" + state["answer"])
    rows = [{"question": "What is the capital of Italy?"}, {"question": "And of Japan?"}]
    singles = [few_shot_qa.run(**row)["answer"] for row in rows]
    states = few_shot_qa.run_batch(rows, num_threads=2, progress_bar=False)
    assert [state["answer"] for state in states] == singles


def test_few_shot_batches_take_tuples_too(backend):
    states = few_shot_qa.run_batch([("What is the capital of Italy?",)], temperature=0)
    assert states[0]["answer"] == few_shot_qa("What is the capital of Italy?")["answer"]


@sgl.function
def multi_turn(s, question_1, question_2):
    s += sgl.system("You are a helpful assistant.")
    s += sgl.user(question_1)
    s += sgl.assistant(sgl.gen("answer_1"))
    with s.user():
        s += question_2
    with s.assistant():
        s += sgl.gen("answer_2")


def test_a_conversation_of_two_turns(backend):
    state = multi_turn.run(question_1="A poem?", question_2="A shorter one?", temperature=0.1)
    assert [message["role"] for message in state.messages()] == [
        "system", "user", "assistant", "user", "assistant",
    ]  # fmt: skip
    assert state.messages()[2]["content"] == state["answer_1"]
    assert state.error() is None


# ---------------------------------------------------------------- choices


@sgl.function
def true_or_false(s, statement):
    s += "Determine whether the statement is True, False, or Unknown.\n"
    s += "Statement: The capital of France is Pairs.\nAnswer: True\n"
    s += "Statement: " + statement + "\n"
    s += "Answer:" + sgl.select("answer", ["True", "False", "Unknown"])


def test_select(backend):
    state = true_or_false.run(statement="The capital of Germany is Berlin.")
    assert state["answer"] in ("True", "False", "Unknown")
    info = state.get_meta_info("answer")
    assert len(info["input_token_logprobs"]) == 3


def test_select_as_hellaswag_asks_it(backend):
    examples = "Removing ice: a man scrapes a windshield. He goes on.\n\n"

    @sgl.function
    def few_shot_hellaswag(s, question, choices):
        s += examples + question
        s += sgl.select("answer", choices=choices)

    rows = [
        {"question": f"Baking {i}: a cake. ", "choices": [f"She eats {i}.", f"It burns {i}!"]}
        for i in range(30)
    ]
    rets = few_shot_hellaswag.run_batch(rows, temperature=0, num_threads=8, generator_style=False)
    preds = [row["choices"].index(ret["answer"]) for row, ret in zip(rows, rets, strict=True)]
    assert set(preds) <= {0, 1}
    assert len(preds) == 30


def test_gen_with_choices_and_a_method(backend):
    @sgl.function
    def program(s):
        s += "Pick: "
        s += sgl.gen(
            "one", choices=["a", "bb"], choices_method=sgl.unconditional_likelihood_normalized
        )
        s += sgl.select("two", ["a", "bb"], choices_method=sgl.greedy_token_selection)

    state = program()
    assert {state["one"], state["two"]} <= {"a", "bb"}
    assert "greedy_logprob_matrix" in state.get_meta_info("two")


# ---------------------------------------------------------------- agents


def test_expert_answer(backend):
    @sgl.function
    def expert_answer(s, question):
        s += "Question: " + question + "\n"
        s += (
            "A good person to answer this question is" + sgl.gen("expert", stop=[".", "\n"]) + ".\n"
        )
        s += (
            "For example, "
            + s["expert"]
            + " would answer that "
            + sgl.gen("answer", stop=".")
            + "."
        )

    state = expert_answer.run(question="What is the capital of France?", temperature=0.1)
    assert f"For example, {state['expert']} would answer that {state['answer']}." in state.text()


def test_tool_use():
    def calculate(expression):
        return f"{eval(expression, {'__builtins__': {}})}"

    @sgl.function
    def tool_use(s, lhs, rhs):
        s += "Please perform computations using a calculator: calculate(expression).\n"
        s += "calculate(1+2)=3\n"
        s += "Question: What is the product of " + lhs + " and " + rhs + "?\n"
        s += "Answer: calculate(" + sgl.gen("expression", stop=")") + ") = "
        s += calculate(s["expression"]) + "\n"

    scripted("5*6) is it")
    state = tool_use(lhs="5", rhs="6", temperature=0)
    assert state.text().endswith("Answer: calculate(5*6) = 30\n")


REACT = [" I need its elevation.", "Colorado", " It ends there.", " Done.", "1,800 ft]"]


def test_react():
    @sgl.function
    def react(s, question):
        s += "Question: Which team won?\nThought 1: look.\nAction 1: Finish [it].\n\n"
        s += "Question: " + question + "\n"
        for i in range(1, 5):
            s += f"Thought {i}:" + sgl.gen(stop=[".", "\n"]) + ".\n"
            s += f"Action {i}: " + sgl.select(f"action_{i}", ["Search", "Finish"])
            if s[f"action_{i}"] == "Search":
                s += " [" + sgl.gen(stop="]") + "].\n"
                s += f"Observation {i}:" + sgl.gen(stop=[".", "\n"]) + ".\n"
            else:
                s += " [" + sgl.gen("answer", stop="]") + "].\n"
                break

    def score(prompt, choice):
        return -1.0 if (choice == "Search") == ("Observation 1" not in prompt) else -2.0

    scripted(*REACT, scores=score)
    state = react.run(question="What country does the Nile reach the sea in?", temperature=0.1)
    assert (state["action_1"], state["action_2"]) == ("Search", "Finish")
    assert state["answer"] == "1,800 ft"
    assert "Observation 1: It ends there.\nThought 2: Done.\nAction 2: Finish [1,800 ft].\n" in (
        state.text()
    )
    assert state["_0"] == " I need its elevation"


# ---------------------------------------------------------------- parallel


def test_parallel_decoding(backend):
    max_tokens, fork_size = 32, 5

    @sgl.function
    def parallel_decoding(s, topic):
        s += "Act as a helpful assistant.\n"
        s += "USER: Give some tips for " + topic + ".\n"
        s += "ASSISTANT: Okay. Here are " + str(fork_size) + " concise tips, each one short:\n"

        for i in range(fork_size):
            s += f"{i + 1}." + sgl.gen(max_tokens=16, stop=[".", "\n"]) + ".\n"

        s += "Now, I expand these tips into detailed paragraphs:\n"
        forks = s.fork(fork_size)
        for i in range(fork_size):
            forks[i] += f"Tip {i + 1}:"
            forks[i] += sgl.gen("detailed_tip", max_tokens, stop=["\n\n"])
        forks.join()

        for i in range(fork_size):
            s += f"Tip {i + 1}:" + s["detailed_tip"][i] + "\n"
        s += "\nIn summary," + sgl.gen("summary", max_tokens=512)

    state = parallel_decoding.run(topic="writing a good blog post", temperature=0.3)
    assert len(state["detailed_tip"]) == fork_size
    assert state.text().endswith("In summary," + state["summary"])


def test_parallel_encoding(backend):
    @sgl.function
    def parallel_encoding(s, question, context_0, context_1):
        s += "USER: I will ask a question based on some statements.\n"
        s += "ASSISTANT: Sure. I will give the answer.\n"
        s += "USER: Please memorize these statements.\n"

        contexts = [context_0, context_1]
        forks = s.fork(len(contexts))
        forks += lambda i: f"Statement {i}: " + contexts[i] + "\n"
        forks.join(mode="concate_and_append")

        s += "Now, please answer the following question.\nQuestion: " + question + "\n"
        s += "ASSISTANT:" + sgl.gen("answer", max_tokens=64)

    state = parallel_encoding.run(
        question="Who is the CEO?", context_0="It is sunny.", context_1="Emily is the CEO."
    )
    assert "Statement 0: It is sunny.\nStatement 1: Emily is the CEO.\nNow, " in state.text()


@sgl.function
def tip_suggestion(s, topic, n):
    s += "Here are " + str(n) + " tips for " + topic + ":\n"
    for i in range(n):
        s += f"{i + 1}. " + sgl.gen(f"tip_{i}", max_tokens=24, stop=[".", "\n"]) + ".\n"
    forks = s.fork(n)
    forks += [f"Expand tip {i + 1}: " for i in range(n)]
    forks += sgl.gen("expanded", max_tokens=48, stop="\n\n")
    forks.join()
    s += "\n".join(s["expanded"])


def test_tip_suggestion(backend):
    state = tip_suggestion.run(topic="health", n=4)
    assert all(isinstance(tip, str) for tip in state["expanded"])
    states = tip_suggestion.run_batch([{"topic": t, "n": 3} for t in "abc"], num_threads=4)
    assert [len(state["expanded"]) for state in states] == [3, 3, 3]


def test_tree_of_thought(backend):
    temp, branches = 0.001, 2

    def propose_plan(s, question, num_branches):
        s += sgl.user("Here is a question: " + question + " Propose a high level plan.")
        forks = s.fork(num_branches)
        forks += sgl.assistant(sgl.gen("plan", max_tokens=64, temperature=temp))
        return forks

    def execute_plan(s, num_branches):
        s += sgl.user("Now carry the plan out.")
        forks = s.fork(num_branches)
        forks += sgl.assistant(sgl.gen("answer", max_tokens=64, temperature=temp))
        return forks

    def reflect_solution(s, num_branches):
        s += sgl.user("Evaluate the solution.")
        forks = s.fork(num_branches)
        forks += sgl.assistant(sgl.gen("score", max_tokens=64, temperature=temp))
        return forks

    @sgl.function
    def tree_search(s, question, num_branches):
        plan_forks = propose_plan(s, question, num_branches)
        sol_states = []
        for plan in plan_forks:
            sol_states.extend(execute_plan(plan, num_branches))
        for sol in sol_states:
            reflect_solution(sol, num_branches)
        solutions = []
        for sol in sol_states:
            forks = sol.fork(num_branches)
            solutions.append([f.text() for f in forks])
        return solutions

    state = tree_search.run(question="How many?", num_branches=branches)
    assert len(state.ret_value) == branches**2
    assert len({text for texts in state.ret_value for text in texts}) == branches**2


def test_multi_chain_reasoning(backend):
    prompts = ["Let's think step by step.", "Break it down.", "Be careful."]

    @sgl.function
    def multi_chain_gsm8k(s, question, num_chains):
        s += "Question: " + question + "\n"
        forks = s.fork(num_chains)
        for i in range(num_chains):
            forks[i] += (
                "Answer: "
                + prompts[i % len(prompts)]
                + sgl.gen("chain", max_tokens=64, temperature=0.3, stop="Question")
            )
        forks.join()
        s += "Answer: Rethinking the above: \n"
        for i in range(num_chains):
            s += "Chain " + str(i) + ": " + s["chain"][i] + "\n"
        s += "Therefore," + sgl.gen("answer", max_tokens=32, temperature=0)

    rows = [{"question": f"{i} + {i}?", "num_chains": 4} for i in range(6)]
    states = multi_chain_gsm8k.run_batch(rows, temperature=0, num_threads=6)
    assert all(len(state["chain"]) == 4 and state["answer"] is not None for state in states)


def test_llm_judge(backend):
    dimensions = ["clarity", "originality", "evidence"]

    @sgl.function
    def multi_dimension_judge(s, article):
        s += "Read the article.\n\n" + article + "\n\n"
        forks = s.fork(len(dimensions))
        for i, dimension in enumerate(dimensions):
            forks[i] += "USER: Judge its " + dimension + ". End with a score.\nASSISTANT: "
            forks[i] += sgl.gen("judgment", max_tokens=64, stop="END")
        forks.join()
        s += "I will judge by these dimensions:\n"
        for i, judgment in enumerate(s["judgment"]):
            s += dimensions[i] + ": " + judgment.strip() + "\n"
        s += "In summary, the score is " + sgl.gen("score", max_tokens=2)

    states = multi_dimension_judge.run_batch(
        [{"article": f"Article {i}"} for i in range(5)], temperature=0, num_threads=4
    )
    assert all(len(state["judgment"]) == 3 for state in states)


def test_a_child_may_be_copied_and_text_put_in_by_hand(backend):
    @sgl.function
    def json_warm_up(s):
        with s.copy() as t:
            t += "A draft: " + sgl.gen("draft", max_tokens=8)
        s += "The text."
        s.set_var("mark", 3)
        with s.var_scope("block"):
            s += " begins " + sgl.gen("x", max_tokens=4)
        return s.get_var("block")

    state = json_warm_up()
    assert state.text() == "The text." + state.ret_value
    assert state["mark"] == 3
    assert "draft" not in state.text()


# ---------------------------------------------------------------- more than text


def test_image_question_answering(tmp_path):
    (tmp_path / "cat.png").write_bytes(b"\x89PNG\r\n\x1a\n...")

    @sgl.function
    def image_qa(s, image_file, question):
        s += sgl.user(sgl.image(image_file) + question)
        s += sgl.assistant(sgl.gen("answer"))

    scripted("a cat", vision=True)
    state = image_qa.run(image_file=str(tmp_path / "cat.png"), question="What?", temperature=0)
    assert state["answer"] == "a cat"


def test_reasoning_is_separated():
    @sgl.function
    def reason(s, question):
        s += sgl.user(question)
        s += sgl.assistant(sgl.separate_reasoning(sgl.gen("answer"), model_type="qwen3"))

    scripted("<think>1, 3, 5</think>1, 3 and 5")
    state = reason("List three odd numbers.")
    assert state["answer"] == "1, 3 and 5"
    assert state["answer_reasoning_content"] == "1, 3, 5"


# ---------------------------------------------------------------- streams


@sgl.function
def ask(s, question):
    s += sgl.system("You are a helpful assistant.")
    s += sgl.user(question)
    s += sgl.assistant(sgl.gen("answer"))


def test_stream_of_the_whole_text(backend):
    state = ask.run(question="What is the capital of France?", temperature=0.1, stream=True)
    assert "".join(state.text_iter()) == state.text()


def test_stream_of_a_variable(backend):
    state = ask.run(question="What is the capital of France?", stream=True)
    assert "".join(state.text_iter("answer")) == state["answer"]


def test_stream_in_a_loop_of_events(backend):
    async def read():
        state = ask.run(question="What is the capital of France?", stream=True)
        chunks = [chunk async for chunk in state.text_async_iter(var_name="answer")]
        return "".join(chunks), state["answer"]

    joined, answer = asyncio.run(read())
    assert joined == answer


def test_stream_with_metadata():
    scripted("It is Paris.", chunk=3)

    async def read():
        state = ask.run(question="What is the capital of France?", stream=True)
        return [
            (out, info)
            async for out, info in state.text_async_iter("answer", return_meta_data=True)
        ]

    found = asyncio.run(read())
    assert "".join(text for text, _ in found) == "It is Paris."
    assert found[-1][1]["completion_tokens"] == len("It is Paris.") + 1


# ---------------------------------------------------------------- keywords


def test_minimum_tokens(backend):
    @sgl.function
    def convo(s):
        s += sgl.user("What is the capital of the United States?")
        s += sgl.assistant(sgl.gen("answer", min_tokens=64, max_tokens=128))

    state = convo.run()
    assert len(state["answer"]) >= 64  # its tokens are characters
    assert state.get_meta_info("answer")["completion_tokens"] >= 64


def test_speculation_for_completion_endpoints_changes_nothing_elsewhere(backend):
    def body(s):
        s += "Name:" + sgl.gen("name", stop="\n") + "\nBirthday:" + sgl.gen("day", stop="\n")
        s += "\nJob:" + sgl.gen("job", stop="\n") + "\n"

    speculative = sgl.function(num_api_spec_tokens=64)(body)
    assert speculative.run(seed=1).text() == sgl.function(body).run(seed=1).text()


def test_logprobs_as_triples(backend):
    @sgl.function
    def program(s):
        s += "The capital of France is" + sgl.gen(
            "answer",
            max_tokens=8,
            return_logprob=True,
            logprob_start_len=0,
            top_logprobs_num=2,
            return_text_in_logprobs=True,
        )

    info = program.run(temperature=0).get_meta_info("answer")
    assert len(info["output_token_logprobs"]) == info["completion_tokens"]
    logprob, token, text = info["output_token_logprobs"][0]
    assert (type(logprob), type(token), type(text)) == (float, int, str)
    assert info["input_token_logprobs"][0][0] is None
    assert len(info["input_token_logprobs"]) == info["prompt_tokens"]
    assert [len(top) for top in info["output_top_logprobs"]] == [2] * info["completion_tokens"]


def test_all_keywords_of_a_run(backend):
    state = few_shot_qa.run(
        question="Why?", max_new_tokens=9, n=1, stop=["z"], stop_token_ids=[7], temperature=0.5,
        top_p=0.9, top_k=20, min_p=0.1, frequency_penalty=0.1, presence_penalty=0.1,
        ignore_eos=False, return_logprob=True, logprob_start_len=0, top_logprobs_num=1,
        return_text_in_logprobs=False, stream=False, backend=backend, use_thread=False,
    )  # fmt: skip
    assert len(state["answer"]) <= 9


def test_bind_and_calls_without_run(backend):
    bound = few_shot_qa.bind(question="What is the capital of Spain?")
    assert bound()["answer"] == few_shot_qa("What is the capital of Spain?")["answer"]


def test_what_is_asked_of_the_backend_itself(backend):
    sgl.flush_cache()
    assert sgl.get_server_info()["model_path"] in ("random", "scripted")


def test_a_function_inside_a_function(backend):
    @sgl.function
    def outer(s, topic):
        s += "Topic: " + topic + "\n"
        inner = few_shot_qa.run(question=topic)
        s += inner["answer"] + sgl.gen("more", max_tokens=4)

    assert re.match(r"Topic: a\n", outer("a").text())


def test_no_thread_is_left():
    before = set(threading.enumerate())
    with RandomBackend(completes="on a thread") as made:
        sgl.set_default_backend(made)
        tip_suggestion.run_batch([{"topic": t, "n": 3} for t in "abcdef"], num_threads=6)
    left = {thread.name for thread in set(threading.enumerate()) - before}
    assert left <= {"lmlang-dispatcher"}


# ---------------------------------------------------------------- constrained outputs

WORD = r"\"[\w\d\s]{1,16}\""
KNIGHT = (
    r"\{\n"
    rf'    "name": {WORD},\n'
    r'    "order": "(Rose|Thorn|Crown)",\n'
    r'    "horse": \{\n'
    rf'        "name": {WORD},\n'
    r'        "height": [0-9]{1,2}\.[0-9]{0,2}\n'
    r"    \},\n"
    rf'    "friends": \[{WORD}, {WORD}\]\n'
    r"\}"
)


def test_a_whole_object_by_one_pattern(backend):
    @sgl.function
    def knight(s, name):
        s += name + " is a knight. Fill in what is known of this knight.\n"
        s += sgl.gen("json_output", max_tokens=256, regex=KNIGHT)

    rows = [{"name": "Iwein"}, {"name": "Erec"}, {"name": "Enite"}]
    states = knight.run_batch(rows, temperature=0, num_threads=2, progress_bar=False)
    for state in states:
        assert re.fullmatch(KNIGHT, state["json_output"])


def test_an_object_of_which_each_value_has_a_pattern(backend):
    integer, text = r"[-+]?[0-9]+[ \n]*", r"\"[\w\d\s]*\""

    @sgl.function
    def town(s, page):
        s += "Page begin.\n" + page + "Page end.\nThe town as JSON.\n"
        with s.var_scope("json_output"):
            s += "{\n"
            s += '  "name": ' + sgl.gen("name", max_tokens=8, regex=text + ",") + "\n"
            s += '  "people": ' + sgl.gen("people", max_tokens=8, regex=integer + ",") + "\n"
            s += '  "area": ' + sgl.gen(regex=integer, stop=[" ", "\n"]) + ",\n"
            s += '  "rivers": ' + sgl.gen("rivers", max_tokens=24, regex=rf"\[({text}, )*{text}\]")
            s += "\n}\n"

    for state in town.run_batch([{"page": str(i)} for i in range(8)], temperature=1):
        assert re.fullmatch(text + ",", state["name"])
        assert re.fullmatch(integer + ",", state["people"])
        assert '"area": ' in state["json_output"]
        assert state["json_output"].endswith(state["rivers"] + "\n}\n")


def test_an_object_of_which_each_value_has_a_type(backend):
    @sgl.function
    def town(s):
        with s.var_scope("json_output"):
            s += "{\n"
            s += '  "name": ' + sgl.gen_string() + ",\n"
            s += '  "people": ' + sgl.gen_int() + ",\n"
            s += '  "area": ' + sgl.gen(dtype=float, stop=[" ", "\n"]) + ",\n"
            s += '  "river": ' + sgl.gen(dtype=str, stop="\n") + "\n"
            s += "}"

    for seed in range(5):
        found = json.loads(town.run(max_new_tokens=64, seed=seed)["json_output"])
        assert [type(value) for value in found.values()][:2] == [str, int]
        assert isinstance(found["area"], (int, float))


def test_types_of_values(backend):
    @sgl.function
    def years(s):
        s += "The full name is " + sgl.gen("text", dtype=str, stop="\n") + "\n"
        s += "It was invented in " + sgl.gen("year", dtype=int) + "\n"
        s += "Pi is " + sgl.gen("pi", dtype=float) + ", the sky is blue: "
        s += sgl.gen("blue", dtype=bool) + ". Hours: " + sgl.gen_int("hours")

    state = years.run()
    state["year"] = int(state["year"])
    state["pi"] = float(state["pi"])
    assert isinstance(state["blue"], bool)
    assert isinstance(int(state["hours"]), int)
    assert isinstance(state["text"], str)


def test_a_schema_as_text(backend):
    schema = json.dumps(
        {
            "type": "object",
            "properties": {"name": {"type": "string"}, "people": {"type": "integer"}},
            "required": ["name", "people"],
            "additionalProperties": False,
        }
    )

    @sgl.function
    def town(s):
        s += sgl.user("A town as JSON.")
        s += sgl.assistant(sgl.gen("json_output", temperature=0, json_schema=schema))

    found = json.loads(town.run()["json_output"])
    assert list(found) == ["name", "people"]
    assert isinstance(found["people"], int)
