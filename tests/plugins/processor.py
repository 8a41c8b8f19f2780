"""An external processor with Envoy's public protocol, whose messages come from the package `xds-protos`.

Says `port N`, and takes lines of JSON, each of which it answers with a line. An order sets what the service does from then on:
{"answers": {"request_headers": {...}}} are the ProcessingResponses (in JSON form) by the kind of the message that they answer; a message
of another kind is answered without changes. {"upper": true} answers content in upper case, {"duplex": true} as streamed responses, the
head of a request only after its content, {"silent": KIND} does not answer messages of a kind, {"end": KIND} ends the call without an
error when one comes, {"fail": KIND} with UNAVAILABLE, {"first": {...}} sends this response before the first answer. The answer to an
order is the list of messages since the last one; after {"silent"}, the end of a call is among them."""

import grpc
import orders
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from google.protobuf import json_format


def content(kind, body, last, now):
    body = body.upper() if now.get("upper") else body
    streamed = ext_proc.StreamedBodyResponse(body=body, end_of_stream=last)
    mutation = ext_proc.BodyMutation(streamed_response=streamed) if now.get("duplex") else ext_proc.BodyMutation(body=body)
    answer = ext_proc.BodyResponse(response=ext_proc.CommonResponse(body_mutation=mutation))
    return ext_proc.ProcessingResponse(**{kind: answer})


def plain(kind, now):
    if kind in now.get("answers", {}):
        return json_format.ParseDict(now["answers"][kind], ext_proc.ProcessingResponse())
    if kind.endswith("trailers"):
        return ext_proc.ProcessingResponse(**{kind: ext_proc.TrailersResponse()})
    answer = ext_proc.HeadersResponse() if kind.endswith("headers") else ext_proc.BodyResponse()
    return ext_proc.ProcessingResponse(**{kind: answer})


def process(messages, context):
    context.add_callback(lambda: orders.note({"kind": "end"}) if "silent" in orders.order else None)
    first, held, holds = True, [], False
    for message in messages:
        kind = message.WhichOneof("request")
        told = {"kind": kind, "message": json_format.MessageToDict(message), "metadata": orders.metadata(context)}
        now = orders.note(told)
        if now.get("end") == kind:
            return
        if now.get("fail") == kind:
            context.abort(grpc.StatusCode.UNAVAILABLE, "on purpose")
        if now.get("silent") == kind:
            continue
        if first and "first" in now:
            yield json_format.ParseDict(now["first"], ext_proc.ProcessingResponse())
        if first:
            holds = message.protocol_config.request_body_mode == ProcessingMode.FULL_DUPLEX_STREAMED
        first = False
        if holds and kind == "request_headers":
            held.append(plain(kind, now))
        elif kind.endswith("body") and (now.get("upper") or now.get("duplex")):
            body = message.request_body if kind == "request_body" else message.response_body
            if held:
                yield held.pop()
            yield content(kind, body.body, body.end_of_stream, now)
        else:
            yield plain(kind, now)


handler = grpc.stream_stream_rpc_method_handler(
    process, ext_proc.ProcessingRequest.FromString, ext_proc.ProcessingResponse.SerializeToString
)
orders.serve("envoy.service.ext_proc.v3.ExternalProcessor", {"Process": handler})
