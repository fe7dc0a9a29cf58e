# SPDX-License-Identifier: Apache-2.0
"""A scoring service with FastAPI. Texts of all requests are batched together. To run it:

    pip install fastapi uvicorn && uvicorn app:app
    curl -d '{"text": "I love this"}' -H 'Content-Type: application/json' http://127.0.0.1:8000/score
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator

import brim
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel


class Text(BaseModel):
    text: str


class Label(BaseModel):
    label: str
    score: float


models: dict[str, brim.Classifier] = {}


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    with brim.Classifier(os.environ.get("MODEL", "")) as classifier:
        models["classifier"] = classifier
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/score")
async def score(body: Text) -> Label:
    try:
        found = await models["classifier"].ascore(body.text)
    except brim.BadData as error:
        raise HTTPException(422, {"problem": error.problem, "remedy": error.remedy}) from None
    except brim.Busy as error:
        raise HTTPException(503, {"problem": error.problem, "remedy": error.remedy}) from None
    return Label(**found)
