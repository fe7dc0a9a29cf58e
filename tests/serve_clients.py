# SPDX-License-Identifier: Apache-2.0
"""serve_clients.py URL KEY: typical use of third-party clients. Called by serve_clients.sh."""
import sys
import urllib.request

import openai
from huggingface_hub import InferenceClient
from prometheus_client.parser import text_string_to_metric_families

url, key = sys.argv[1:]

# Hugging Face
client = InferenceClient(model=f"{url}/models/mood", token=key)
labels = client.text_classification("I love it", top_k=2)
assert len(labels) == 2 and labels[0].label == "positive" and labels[0].score > labels[1].score, labels
vectors = InferenceClient(model=f"{url}/models/vectors", token=key).feature_extraction("a day")
assert vectors.shape[0] == 1 and vectors.shape[1] > 100, vectors.shape
entities = InferenceClient(model=f"{url}/models/tags", token=key).token_classification("w6 w7 w8 w9")
assert all(e.word and e.end > e.start for e in entities), entities
similar = InferenceClient(model=f"{url}/similarity", token=key).sentence_similarity("a good day", other_sentences=["a good day", "w"])
assert abs(similar[0] - 1) < 1e-4 and similar[1] < 0.999, similar

# OpenAI
client = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
assert {"mood", "tags", "vader", "vectors"} <= {m.id for m in client.models.list()}
assert client.models.retrieve("vectors").id == "vectors"
single = client.embeddings.create(model="vectors", input="a day")  # requests base64
several = client.embeddings.create(model="vectors", input=["a day", "a night"], encoding_format="float", dimensions=8)
assert len(several.data) == 2 and len(several.data[0].embedding) == 8 and several.usage.prompt_tokens > 4
assert abs(sum(v * v for v in single.data[0].embedding) - 1) < 1e-4
tokens = client.embeddings.create(model="vectors", input=[[101, 7, 102], [8]])
assert len(tokens.data) == 2 and tokens.usage.prompt_tokens == 4, tokens.usage
for wrong, error in (("none", openai.NotFoundError), ("mood", openai.APIStatusError)):
    try:
        client.embeddings.create(model=wrong, input="a")
        raise SystemExit(f"embeddings of {wrong}")
    except error as e:
        assert e.body["message"], e
try:
    openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0).models.list()
    raise SystemExit("a wrong key was accepted")
except openai.AuthenticationError:
    pass

# Prometheus
request = urllib.request.Request(f"{url}/metrics", headers={"Authorization": f"Bearer {key}"})
families = {f.name: f for f in text_string_to_metric_families(urllib.request.urlopen(request).read().decode())}
assert families["brim_requests"].type == "counter" and families["brim_request_duration_seconds"].type == "histogram"
assert sum(s.value for s in families["brim_texts"].samples) >= 6
total = lambda family, name: sum(s.value for s in families[family].samples if s.name == name)
for name in ("brim_batch_tokens", "brim_batch_sequences", "brim_batch_fill_ratio"):
    assert total(name, name + "_count") == total("brim_batches", "brim_batches_total") > 0, name
assert total("brim_batch_tokens", "brim_batch_tokens_sum") == total("brim_computed_tokens", "brim_computed_tokens_total")
assert families["brim_model_load_seconds"].type == "summary" and total("brim_model_load_seconds", "brim_model_load_seconds_count") >= 1
assert {s.labels["cause"] for s in families["brim_device_idle_seconds"].samples} == {"no_work", "pack", "collect", "switch"}
for family in families.values():
    assert family.documentation and family.samples, family.name
    if family.type == "counter" and family.name.startswith("brim_"):
        assert all(s.name.endswith("_total") for s in family.samples), family.name
    if family.type != "histogram":
        continue
    series = {}
    for sample in family.samples:
        labels = {k: v for k, v in sample.labels.items() if k != "le"}
        series.setdefault((sample.name, tuple(sorted(labels.items()))), []).append(sample)
    for (name, labels), samples in series.items():
        if not name.endswith("_bucket"):
            continue
        values = [s.value for s in samples]
        assert values == sorted(values) and samples[-1].labels["le"] == "+Inf", (name, labels)
        count = series[name.replace("_bucket", "_count"), labels][0].value
        assert values[-1] == count, (name, labels)
print(f"clients: {len(families)} families of metrics")
