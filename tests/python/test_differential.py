# SPDX-License-Identifier: Apache-2.0
"""The same calls on transformers' pipelines and sentence-transformers, with the same fp32 models; skipped if those are not
installed. ACCEPTED lists the calls whose results differ, with the reason."""

from __future__ import annotations

import functools
import json
import warnings

import brim
import numpy as np
import pytest
from conftest import tiny_model
from test_parity import made_model, many_texts

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOLERANCE = 1e-4
PLAIN = ["ada lives in london", "paris", "word1 word2 , london .", ""]
LONG = "ada lives in london . " * 150
PAIR = {"text": "ada lives in london", "text_pair": "paris . word1"}
LONG_PAIR = {"text": LONG, "text_pair": "paris . word1 " * 90}

# Calls (as in the parameters of the tests) that give other results, by reason.
ACCEPTED = {
    "cross: rank top_k=0": "a limit of 0 is an error, not an empty list",
    "classify: max_length=500": "a length beyond the model's is reduced to it; transformers fails",
    "classify: max_length=500 top_k": "a length beyond the model's is reduced to it; transformers fails",
    "token: punctuation first": "`word` is the text from `start` to `end`, not tokens joined without the spaces before punctuation",
    "classify: tuple": "a tuple of texts is a list of texts; transformers fails",
    "classify: no texts": "an empty list gives an empty list; transformers fails",
    "classify: long": "texts beyond the model's length are truncated with a warning, not an error",
    "classify: long top_k": "texts beyond the model's length are truncated with a warning, not an error",
    "token: stride none": "tokens of long texts need no groups; transformers requires them",
    "token: stride short none": "tokens of long texts need no groups; transformers requires them",
    **{f"token: stride {strategy}": "tokens of two windows are scored once; transformers compares their entities by length"
       for strategy in ("simple", "first", "average", "max")},
    "encode: no texts": "an empty list gives an array of no rows and the model's width",
    "encode: pairs token_embeddings": "pairs have no vectors of tokens",
    "encode: tokenize all keys": "without the keys of sentence-transformers' modules, such as modality",
    "encode: None output, all keys": "without the keys of sentence-transformers' modules, such as modality",
    "encode: None output of several": "vectors of tokens are not padded to the longest text of a batch",
}


def equal(ours, theirs):
    """Whether results are equal, except for types of arrays and the last digits of numbers."""
    if isinstance(theirs, torch.Tensor):
        theirs = theirs.detach().cpu().numpy()
    if isinstance(ours, torch.Tensor):
        ours = ours.numpy()
    if isinstance(theirs, np.ndarray) or isinstance(ours, np.ndarray):
        ours, theirs = np.asarray(ours), np.asarray(theirs)
        if ours.shape != theirs.shape:
            return False
        if theirs.dtype.kind in "iu" and theirs.dtype.itemsize == 1:  # quantized: one step of rounding
            return bool((np.abs(ours.astype(int) - theirs.astype(int)) <= 1).all())
        return bool(np.allclose(ours, theirs, atol=TOLERANCE, rtol=1e-4))
    if isinstance(theirs, dict):
        return isinstance(ours, dict) and set(theirs) == set(ours) and all(equal(ours[key], theirs[key]) for key in theirs)
    if isinstance(theirs, (list, tuple)):
        return isinstance(ours, (list, tuple)) and len(ours) == len(theirs) and all(map(equal, ours, theirs))
    if isinstance(theirs, (float, np.floating)):
        return isinstance(ours, (float, np.floating)) and abs(float(ours) - float(theirs)) < TOLERANCE * max(1, abs(float(theirs)))
    if isinstance(theirs, (bool, int, str)) or theirs is None:
        return ours == theirs
    if hasattr(theirs, "__iter__"):  # iterators of pipelines
        return equal(list(ours), list(theirs))
    raise TypeError(type(theirs))


def outcome(call, pipe):
    """The result of a call, with generators read; or the exception."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = call(pipe)
        plain = (dict, list, tuple, str, float, int, np.ndarray, np.generic, torch.Tensor, type(None))
        return found if isinstance(found, plain) else list(found)
    except Exception as error:
        return error


def check(name, call, ours, theirs):
    got, wanted = outcome(call, ours), outcome(call, theirs)
    both_fail = isinstance(got, Exception) and isinstance(wanted, Exception)
    same = both_fail or (not isinstance(got, Exception) and not isinstance(wanted, Exception) and equal(got, wanted))
    if isinstance(got, Exception):
        assert isinstance(got, brim.Error), repr(got)
    if name in ACCEPTED:
        assert not same, f"{name} is equal now: remove it from ACCEPTED"
    else:
        assert same, f"\nours:   {got!r:.600}\ntheirs: {wanted!r:.600}"


class Items(torch.utils.data.Dataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def classify_calls():
    calls = {"one": lambda p: p("ada lives"), "list": lambda p: p(PLAIN), "tuple": lambda p: p(tuple(PLAIN[:2])),
             "list of one": lambda p: p(["ada"]), "empty text": lambda p: p(""), "no texts": lambda p: p([]),
             "dict": lambda p: p({"text": "ada lives"}), "dict top_k": lambda p: p({"text": "ada lives"}, top_k=2),
             "generator": lambda p: p(t for t in PLAIN), "generator top_k": lambda p: p((t for t in PLAIN), top_k=None),
             "dataset": lambda p: p(Items(PLAIN)), "dataset of dicts": lambda p: p(Items([{"text": t} for t in PLAIN])),
             "dataset top_k": lambda p: p(Items(PLAIN), top_k=2), "no arguments": lambda p: p(), "None": lambda p: p(None),
             "a number": lambda p: p(5), "list of numbers": lambda p: p([5]), "unknown function": lambda p: p("a", function_to_apply="tanh"),
             "long": lambda p: p(LONG), "long top_k": lambda p: p([LONG], top_k=None),
             "list of dicts": lambda p: p([{"text": t} for t in PLAIN]), "unicode": lambda p: p(["Ünïcödé 日本 😀", "\n\t ada"])}
    for k in (1, 2, 3, 50, None):
        calls[f"one top_k={k}"] = lambda p, k=k: p("ada lives", top_k=k)
        calls[f"list top_k={k}"] = lambda p, k=k: p(PLAIN, top_k=k)
    for function in ("softmax", "sigmoid", "none", None, "default"):
        calls[f"one function={function}"] = lambda p, f=function: p("ada lives", function_to_apply=f)
        calls[f"list function={function} top_k"] = lambda p, f=function: p(PLAIN, function_to_apply=f, top_k=None)
    for length in (3, 5, 8, 16, 30, 500):
        calls[f"max_length={length}"] = lambda p, n=length: p([LONG, "ada"], truncation=True, max_length=n)
        calls[f"max_length={length} top_k"] = lambda p, n=length: p(LONG, truncation=True, max_length=n, top_k=None)
    for padding in (True, False, "longest", "max_length"):
        calls[f"padding={padding}"] = lambda p, v=padding: p(PLAIN, padding=v, truncation=True, max_length=32)
    for truncation in (True, "longest_first", False, "do_not_truncate"):
        calls[f"truncation={truncation}"] = lambda p, v=truncation: p([LONG], truncation=v)
        calls[f"truncation={truncation} short"] = lambda p, v=truncation: p("ada", truncation=v)
    for size in (1, 2, 64):
        calls[f"batch_size={size}"] = lambda p, n=size: p(PLAIN, batch_size=n)
    calls["num_workers"] = lambda p: p(PLAIN, num_workers=0)
    return calls


def pair_calls():
    calls = {"one": lambda p: p(PAIR), "list": lambda p: p([PAIR, PAIR]), "top_k": lambda p: p(PAIR, top_k=None),
             "list top_k": lambda p: p([PAIR], top_k=2), "mixed": lambda p: p([PAIR, "ada", {"text": "ada"}]),
             "dataset": lambda p: p(Items([PAIR, PAIR])), "generator": lambda p: p(x for x in [PAIR, PAIR]),
             "dataset top_k": lambda p: p(Items([PAIR, PAIR]), top_k=None), "long": lambda p: p(LONG_PAIR, truncation=True)}
    for length in (8, 16, 40):
        calls[f"max_length={length}"] = lambda p, n=length: p(LONG_PAIR, truncation=True, max_length=n)
    for function in ("softmax", "sigmoid", "none"):
        calls[f"function={function}"] = lambda p, f=function: p(PAIR, function_to_apply=f)
    return calls


def token_calls():
    text, words = "ada lives in london paris", ["ada", "lives", "in", "london"]
    calls = {"no arguments": lambda p: p(), "None": lambda p: p(None), "dataset": lambda p: p(Items([text, "ada"])),
             "generator": lambda p: p(t for t in [text, "ada"]), "list of one": lambda p: p([text]),
             "unknown strategy": lambda p: p(text, aggregation_strategy="last"), "batch_size": lambda p: p([text, "ada"], batch_size=2),
             "punctuation none": lambda p: p("ada , london .", ignore_labels=[]),
             "punctuation first": lambda p: p("ada , london .", aggregation_strategy="first", ignore_labels=[])}
    for strategy in ("none", "simple", "first", "average", "max"):
        calls[f"one {strategy}"] = lambda p, s=strategy: p(text, aggregation_strategy=s)
        calls[f"list {strategy}"] = lambda p, s=strategy: p([text, "ada", "word1 word2"], aggregation_strategy=s)
        for ignored in ([], ["O"], ["O", "PER"], ["B-PER"], ["LOC"]):
            calls[f"{strategy} ignore_labels={ignored}"] = lambda p, s=strategy, i=ignored: p(
                text, aggregation_strategy=s, ignore_labels=i)
        calls[f"words {strategy}"] = lambda p, s=strategy: p(words, is_split_into_words=True, aggregation_strategy=s)
        calls[f"lists of words {strategy}"] = lambda p, s=strategy: p([words, ["paris"]], is_split_into_words=True,
                                                                    aggregation_strategy=s)
        calls[f"long {strategy}"] = lambda p, s=strategy: p(LONG.replace(" .", ""), aggregation_strategy=s)
        calls[f"generator {strategy}"] = lambda p, s=strategy: p((t for t in [text]), aggregation_strategy=s)
        for delimiter in (", ", "_", ""):
            calls[f"words delimiter={delimiter!r} {strategy}"] = lambda p, s=strategy, d=delimiter: p(
                words, is_split_into_words=True, delimiter=d, aggregation_strategy=s)
        calls[f"stride {strategy}"] = lambda p, s=strategy: p(LONG.replace(" .", ""), stride=8, aggregation_strategy=s)
        calls[f"stride short {strategy}"] = lambda p, s=strategy: p(text, stride=4, aggregation_strategy=s)
    calls["stride beyond the length"] = lambda p: p(text, stride=500, aggregation_strategy="simple")
    calls["negative stride"] = lambda p: p(text, stride=-1, aggregation_strategy="simple")
    return calls


def with_setting(model, name, value, call):
    before = getattr(model, name)
    setattr(model, name, value)
    try:
        return call(model)
    finally:
        setattr(model, name, before)


def main_keys(found, keys=("input_ids", "attention_mask")):
    """These values of a dict or of a list of dicts."""
    return [main_keys(one, keys) for one in found] if isinstance(found, list) else {key: found[key] for key in keys}


def encode_calls():
    texts = ["ada lives in london", "paris", "word1 word2 , london ."]
    many = many_texts(40)
    calls = {"one": lambda m: m.encode("ada"), "list": lambda m: m.encode(texts), "array": lambda m: m.encode(np.array(texts)),
             "empty text": lambda m: m.encode(""), "prompt": lambda m: m.encode(texts, prompt="ada "),
             "prompt_name": lambda m: m.encode(texts, prompt_name="query"), "unknown prompt": lambda m: m.encode(texts, prompt_name="x"),
             "query": lambda m: m.encode_query(texts), "one query": lambda m: m.encode_query("ada"),
             "document": lambda m: m.encode_document(texts), "tensor": lambda m: m.encode(texts, convert_to_tensor=True),
             "one tensor": lambda m: m.encode("ada", convert_to_tensor=True),
             "list of tensors": lambda m: m.encode(texts, convert_to_numpy=False), "device": lambda m: m.encode(texts, device="cpu"),
             "batch_size": lambda m: m.encode(texts, batch_size=2), "bar": lambda m: m.encode(texts, show_progress_bar=False),
             "dimension": lambda m: m.get_sentence_embedding_dimension(), "max_seq_length": lambda m: m.max_seq_length,
             "similarity_fn_name": lambda m: str(m.similarity_fn_name), "long": lambda m: m.encode(LONG),
             "pair": lambda m: m.similarity(m.encode(texts), m.encode(texts[:2])),
             "pairwise": lambda m: m.similarity_pairwise(m.encode(texts), m.encode(texts[::-1])),
             "one similarity": lambda m: m.similarity(m.encode("ada"), m.encode("paris")), "None": lambda m: m.encode(None),
             "unknown precision": lambda m: m.encode(texts, precision="int3")}
    for normalized in (True, False):
        for width in (None, 5, 16, 400):
            calls[f"normalize={normalized} truncate_dim={width}"] = lambda m, n=normalized, w=width: m.encode(
                texts, normalize_embeddings=n, truncate_dim=w)
    for precision in ("float32", "int8", "uint8", "binary", "ubinary"):
        calls[f"many precision={precision}"] = lambda m, p=precision: m.encode(many, precision=p)
        calls[f"one precision={precision}"] = lambda m, p=precision: m.encode("ada", precision=p)
    pairs = [("ada lives", "in london"), ("paris", "word1 word2 .")]
    calls.update({
        "pairs": lambda m: m.encode(pairs), "lists of two": lambda m: m.encode([list(pair) for pair in pairs]),
        "pairs and texts": lambda m: m.encode([pairs[0], "ada", pairs[1], "paris"]), "one pair in a list": lambda m: m.encode(pairs[:1]),
        "pairs prompt": lambda m: m.encode(pairs, prompt="ada "), "pairs prompt_name": lambda m: m.encode(pairs, prompt_name="query"),
        "pairs normalize": lambda m: m.encode(pairs, normalize_embeddings=True, truncate_dim=7),
        "long pair": lambda m: m.encode([(LONG, "paris . word1")]), "pairs token_embeddings": lambda m: m.encode(pairs, output_value="token_embeddings"),
        "tuple of texts": lambda m: m.encode(tuple(texts)), "inputs": lambda m: m.encode(inputs=texts), "sentences": lambda m: m.encode(sentences=texts),
        "no texts": lambda m: m.encode([]), "bar shown": lambda m: m.encode(texts, show_progress_bar=True),
        "device of two": lambda m: m.encode(texts, device="cuda:3"), "batch_size=0": lambda m: m.encode(texts, batch_size=0),
        "prompt and prompt_name": lambda m: m.encode(texts, prompt="ada ", prompt_name="document"),
        "query prompt": lambda m: m.encode_query(texts, prompt="word1 "), "document prompt_name": lambda m: m.encode_document(texts, prompt_name="query"),
        "document options": lambda m: m.encode_document(texts, normalize_embeddings=True, truncate_dim=9),
        "query tensor": lambda m: m.encode_query(texts, convert_to_tensor=True), "one document": lambda m: m.encode_document("ada"),
        "dimension by its new name": lambda m: m.get_embedding_dimension(), "prompts": lambda m: dict(m.prompts),
        "tokenize": lambda m: main_keys(m.tokenize(texts)), "tokenize one": lambda m: main_keys(m.tokenize(texts[:1])),
        "tokenize long": lambda m: main_keys(m.tokenize([LONG, "ada"])), "tokenize all keys": lambda m: m.tokenize(texts),
        "None output, all keys": lambda m: m.encode("ada lives", output_value=None),
        "None output of several": lambda m: main_keys(m.encode(texts, output_value=None), OUTPUTS),
        "unknown output": lambda m: m.encode(texts, output_value="tokens"),
        "unknown similarity": lambda m: with_setting(m, "similarity_fn_name", "jaccard", str)})
    for options in ({}, {"truncate_dim": 7}, {"normalize_embeddings": True}, {"prompt": "paris "}, {"convert_to_tensor": True}):
        calls[f"None output {options}"] = lambda m, o=options: main_keys(m.encode("ada lives", output_value=None, **o), OUTPUTS)
        calls[f"None output of one at a time {options}"] = lambda m, o=options: main_keys(
            m.encode(texts, output_value=None, batch_size=1, **o), OUTPUTS)
    for length in (4, 16, 60):
        calls[f"max_seq_length={length}"] = lambda m, n=length: with_setting(m, "max_seq_length", n, lambda m: m.encode([LONG, "ada"]))
        calls[f"max_seq_length={length} tokenize"] = lambda m, n=length: with_setting(m, "max_seq_length", n, lambda m: main_keys(m.tokenize([LONG])))
    for name in ("dot", "euclidean", "manhattan", "cosine"):
        calls[f"similarity {name}"] = lambda m, n=name: with_setting(m, "similarity_fn_name", n, lambda m: m.similarity(m.encode(texts), m.encode(texts[:2])))
        calls[f"similarity_pairwise {name}"] = lambda m, n=name: with_setting(
            m, "similarity_fn_name", n, lambda m: m.similarity_pairwise(m.encode(texts), m.encode(texts[::-1])))
    for output in ("token_embeddings", "sentence_embedding"):
        calls[f"one {output}"] = lambda m, o=output: m.encode("ada lives", output_value=o)
        calls[f"list {output}"] = lambda m, o=output: list(m.encode(texts, output_value=o))
    return calls


def cross_calls():
    pairs = [("ada lives", "in london"), ("ada lives", "paris"), ("word1", "word2 .")]
    documents = ["in london", "paris", "word1 word2"]
    calls = {"list": lambda m: m.predict(pairs), "one": lambda m: m.predict(pairs[0]), "lists": lambda m: m.predict([list(p) for p in pairs]),
             "tensor": lambda m: m.predict(pairs, convert_to_tensor=True), "tensors": lambda m: m.predict(pairs, convert_to_numpy=False),
             "batch_size": lambda m: m.predict(pairs, batch_size=2), "softmax": lambda m: m.predict(pairs, apply_softmax=True),
             "identity": lambda m: m.predict(pairs, activation_fn=torch.nn.Identity()),
             "sigmoid": lambda m: m.predict(pairs, activation_fn=torch.nn.Sigmoid()),
             "rank": lambda m: m.rank("ada lives", documents), "rank documents": lambda m: m.rank("ada lives", documents, return_documents=True),
             "rank top_k": lambda m: m.rank("ada lives", documents, top_k=2), "rank top_k=0": lambda m: m.rank("ada lives", documents, top_k=0),
             "rank one": lambda m: m.rank("ada lives", documents[:1]), "rank batch": lambda m: m.rank("ada", documents, batch_size=1),
             "num_labels": lambda m: m.num_labels, "bar": lambda m: m.predict(pairs, show_progress_bar=True),
             "no bar": lambda m: m.predict(pairs, show_progress_bar=False), "rank bar": lambda m: m.rank("ada", documents, show_progress_bar=True),
             "rank no bar": lambda m: m.rank("ada", documents, show_progress_bar=False), "inputs": lambda m: m.predict(inputs=pairs),
             "sentences": lambda m: m.predict(sentences=pairs), "device": lambda m: m.predict(pairs, device="cpu"),
             "rank device": lambda m: m.rank("ada", documents, device="cpu"), "prompt": lambda m: m.predict(pairs, prompt="paris "),
             "rank prompt": lambda m: m.rank("ada", documents, prompt="paris "), "one tensor": lambda m: m.predict(pairs[0], convert_to_tensor=True),
             "rank identity": lambda m: m.rank("ada", documents, activation_fn=torch.nn.Identity()), "array": lambda m: m.predict(np.array(pairs)),
             "no pairs": lambda m: m.predict([]), "no documents": lambda m: m.rank("ada", []), "three texts": lambda m: m.predict([("a", "b", "c")]),
             "one text": lambda m: m.predict(["ada"]), "None": lambda m: m.predict(None), "long": lambda m: m.predict([(LONG, "paris")]),
             "activation_fn": lambda m: type(m.activation_fn).__name__.lower() if not isinstance(m.activation_fn, str) else m.activation_fn}
    return calls


BUILT = {  # arguments of constructors; those of ours in place of transformers' dtype
    "classify": [{"top_k": None}, {"top_k": 2}, {"function_to_apply": "none"}, {"function_to_apply": "sigmoid", "top_k": None},
                 {"truncation": True, "max_length": 8}, {"padding": True}, {"batch_size": 2}, {"device": -1}, {"num_workers": 0}],
    "token": [*({"aggregation_strategy": s} for s in ("none", "simple", "first", "average", "max")), {"ignore_labels": []},
              {"ignore_labels": ["PER"], "aggregation_strategy": "simple"}, {"batch_size": 2}],
    "encode": [{"truncate_dim": 5}, {"prompts": {"query": "paris "}}, {"prompts": {"q": "paris "}, "default_prompt_name": "q"},
               {"similarity_fn_name": "dot"}, {"similarity_fn_name": "euclidean"}],
    "cross": [{"activation_fn": torch.nn.Sigmoid()}, {"activation_fn": torch.nn.Identity()}, {"max_length": 12}, {"device": "cpu"}]}


def built_calls(kind):
    """Calls of models whose constructors got these arguments."""
    def made(options, call):
        return lambda make: call(make(**options))
    texts, long_pair = ["ada lives in london", "paris"], [("ada lives", LONG), ("ada", "paris")]
    by_kind = {
        "classify": {"one": lambda p: p("ada lives"), "list": lambda p: p([*texts, LONG[:90]]), "top_k": lambda p: p(texts, top_k=1)},
        "token": {"one": lambda p: p(texts[0]), "list": lambda p: p(texts), "strategy": lambda p: p(texts[0], aggregation_strategy="first")},
        "encode": {"list": lambda m: m.encode(texts), "query": lambda m: m.encode_query("ada"),
                   "similarity": lambda m: m.similarity(m.encode(texts), m.encode(texts))},
        "cross": {"list": lambda m: m.predict(long_pair), "rank": lambda m: m.rank("ada", texts)}}
    return {f"{name} {options}": made(options, call) for options in BUILT[kind] for name, call in by_kind[kind].items()}


OUTPUTS = ("token_embeddings", "sentence_embedding", "input_ids", "attention_mask")
GROUPS = {"classify": classify_calls, "pair": pair_calls, "token": token_calls, "encode": encode_calls, "cross": cross_calls}
GROUPS.update({f"built {kind}": lambda kind=kind: built_calls(kind) for kind in BUILT})
CALLS = {f"{group}: {name}": call for group, made in GROUPS.items() for name, call in made().items()}


def limited_model(name, folder):
    """A tiny model whose tokenizer knows its length, as those of real models do."""
    path = tiny_model(name, folder)
    edit(path / "tokenizer_config.json", model_max_length=40)
    return str(path)


def edit(file, **values):
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Pairs of models by group; those of sentence-transformers only if it is installed."""
    folder = tmp_path_factory.mktemp("models")
    options = {"precision": "fp32", "device": "cpu"}
    made = {}
    for group, name in (("classify", "bert_sequence"), ("pair", "bert_pair")):
        path = limited_model(name, folder / group)
        made[group] = (brim.Classifier(path, **options), transformers.pipeline("text-classification", model=path, device="cpu"))
    text_model, path = made["classify"][0]._options["model"], limited_model("bert_token", folder / "token")
    made["token"] = (brim.pipeline("ner", model=path, dtype="float32", device="cpu"),
                     transformers.pipeline("ner", model=path, device="cpu"))
    for group, task, name in (("classify", "text-classification", text_model), ("token", "ner", path)):
        made[f"built {group}"] = tuple(
            functools.partial(library.pipeline, task, model=name, dtype="float32") for library in (brim, transformers))
    try:
        import sentence_transformers as peer
        from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    except ImportError:
        return made
    made_model("bert", transformers.AutoModel, folder / "plain")
    edit(folder / "plain" / "tokenizer_config.json", model_input_names=["input_ids", "token_type_ids", "attention_mask"])  # as BERT's
    words = Transformer(str(folder / "plain"), max_seq_length=128)
    theirs = peer.SentenceTransformer(modules=[words, Pooling(48, pooling_mode="mean")], device="cpu",
                                      prompts={"query": "ada ", "document": "paris "})
    theirs.save(str(folder / "saved"))
    made["encode"] = (brim.Encoder(folder / "saved", **options), theirs)
    made["built encode"] = (functools.partial(brim.Encoder, folder / "saved", **options),
                            functools.partial(peer.SentenceTransformer, str(folder / "saved"), device="cpu"))
    path = limited_model("bert_pair", folder / "cross")
    torch.manual_seed(7)
    config = transformers.AutoConfig.from_pretrained(path, num_labels=1, id2label={0: "LABEL_0"}, initializer_range=0.2)
    transformers.AutoModelForSequenceClassification.from_config(config).save_pretrained(path)
    made["cross"] = (brim.CrossEncoder(path, **options), peer.CrossEncoder(path, device="cpu"))
    made["built cross"] = (functools.partial(brim.CrossEncoder, path, precision="fp32"), functools.partial(peer.CrossEncoder, path))
    return made


@pytest.mark.parametrize("name", CALLS)
def test_call(name, models):
    group = name.partition(":")[0]
    if group not in models:
        pytest.skip("sentence-transformers is not installed")
    check(name, CALLS[name], *models[group])


def test_enough_calls_are_equal():
    assert len(CALLS) >= 150 and set(ACCEPTED) <= set(CALLS)
    assert len(ACCEPTED) <= 0.05 * len(CALLS)
