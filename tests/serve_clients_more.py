# SPDX-License-Identifier: Apache-2.0
"""serve_clients_more.py URL KEY: the clients of LangChain, LlamaIndex and infinity. Called by serve_clients.sh --all."""
import sys

from huggingface_hub import InferenceClient
from infinity_client import AuthenticatedClient
from infinity_client.api.default import classify, embeddings
from infinity_client.models import ClassifyInput, OpenAIEmbeddingInputText
from langchain_huggingface import HuggingFaceEndpointEmbeddings
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

url, key = sys.argv[1:]


def check(vectors, count):
    assert len(vectors) == count and len(vectors[0]) > 100, (len(vectors), len(vectors[0]))
    assert vectors[0] != vectors[-1] or count == 1


chain = HuggingFaceEndpointEmbeddings(model="vectors", huggingfacehub_api_token=key)  # accepts only names since 1.2
chain.client = InferenceClient(model=f"{url}/models/vectors", token=key)
check(chain.embed_documents(["a day", "a night"]), 2)
check([chain.embed_query("a day")], 1)

index = TextEmbeddingsInference(model_name="vectors", base_url=url, auth_token=key)
check(index.get_text_embedding_batch(["a day", "a night", "a week"]), 3)
check([index.get_query_embedding("a day")], 1)

with AuthenticatedClient(base_url=url, token=key, raise_on_unexpected_status=True) as client:
    given = embeddings.sync(client=client, body=OpenAIEmbeddingInputText(input_=["a day", "a night"], model="vectors"))
    check([d.embedding for d in given.data], 2)
    assert given.usage.prompt_tokens > 4
    result = classify.sync(client=client, body=ClassifyInput(input_=["I love it", "a waste"], model="mood"))
    assert [labels[0].label for labels in result.data] == ["positive", "negative"], result
print("clients: langchain-huggingface, llama-index-embeddings-text-embeddings-inference, infinity_client")
