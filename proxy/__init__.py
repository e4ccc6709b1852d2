"""Rejoinder: a stateful reverse proxy for the OpenAI Responses API. The path of a request:

1. `server/connection` parses it; `server/listener` reads it whole, and asks `facades/openai` what it is: a turn, a
   lookup of state, or nobody's business.
2. A lookup goes to `server/objects`, which asks the `store`. Everything else runs through the `chain` of `filters`.
3. `filters/owner` fixes whose state it is, `validate` refuses what cannot be served, `response_store` begins a draft.
4. `filters/rehydrate` puts the history that the store kept in front of the turn's input; other bytes stay as they came.
5. `upstream/client` makes the one HTTP call; `upstream/relay` and `protocol/sse` find the frames in what comes back.
6. The answer returns through each filter's `send`: `repair` mends it, `rehydrate` restores names, `response_store`
   commits.
7. Only then does the terminal event, or the JSON body, go on to `server/reply`, which writes it as it came.
8. What goes wrong is a `ProxyError`; `server/listener` turns it into a status, or into a last event where that is too
   late.
"""
