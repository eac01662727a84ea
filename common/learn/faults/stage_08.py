"""Faults that a learner meets in stage 08: pages in transfer, messages, and workers that die."""

from .fault import Fault

MESSAGES = "tests/stages/test_08_disaggregated_messages.py::{}"

FAULTS = [
    Fault(
        number=41,
        stage="08",
        symptom="After a prefill worker has died, some of its requests go on with nonsense instead of beginning again.",
        difficulty=2,
        hints=(
            "How does a decode worker learn that pages have arrived, and how that they never will?",
            "Let the prefill worker die after it has offered the pages, and before they are fetched.",
        ),
        story="A transfer that failed says that it is done. The pages reserved for it hold whatever was there before, "
        "and decode reads it. In SGLang a request that was aborted on the prefill side let the decode side "
        "generate from an incomplete KV cache. Done and failed are two answers, and the second must not look "
        "like the first.",
        source="sgl-project/sglang#30233",
        file="08_disaggregated/kv_transport.py",
        old='        if not self.filled:\n            raise ConnectionError("the pages have been withdrawn")\n',
        new="",
        caught_by=MESSAGES.format("test_pages_that_were_withdrawn_have_not_arrived"),
        reproduce="""
from faulty_fleet import fleet_without_model

router, fleet = fleet_without_model(1, 1)
fleet.at_once = False
request = router.add([1, 2, 3], endless(max_tokens=5))
router.step()
fleet.turn(0)  # computes the prompt, and offers its pages
router.step()  # orders the other worker to fetch them
fleet.die(0)
fleet.at_once = True
finish(router)  # the workers check what they read
""",
    ),
    Fault(
        number=42,
        stage="08",
        symptom="When many users cancel at once, other users' answers turn into nonsense. A minute later all is well.",
        difficulty=3,
        hints=(
            "Two parties use a page while it is in transfer. Which of them may free it, and when?",
            "In which order must an order's transfer end and its pages become free?",
        ),
        story="The order is dropped, and its reserved pages are free for the next one, while the transfer into them "
        "is still under way. The last bytes arrive in pages of another request. SGLang's report names the "
        "cause: a page had two owners, the request and the writer, and the allocator knew of one.",
        source="sgl-project/sglang#24527",
        file="08_disaggregated/worker.py",
        old="        if transfer := self.in_transfer.pop(key, None):\n"
        "            transfer.cancel()  # before its pages are free\n",
        new="        self.in_transfer.pop(key, None)\n",
        caught_by=MESSAGES.format("test_a_transfer_has_ended_before_its_pages_are_free"),
        reproduce="""
from types import SimpleNamespace

from faulty_fleet import WorkerWithoutModel, messages, worker_module

writing = []
transfer = SimpleNamespace(done=lambda: False, wait=lambda seconds: None, cancel=writing.clear, bytes=0, seconds=0)
transport = stage("kv_transport").LocalTransport()
transport.receive = lambda ticket, skip, pages, on_done: writing.extend(pages) or transfer
worker = worker_module.Worker(WorkerWithoutModel(8), transport)
order = messages.Order("a#0", [1, 2, 3], [4], endless(max_tokens=5), 0, 5, ticket="somewhere")
worker.read(messages.Mail(1, [order], []))
worker.turn()
worker.read(messages.Mail(2, [], ["a#0"]))
free = worker.scheduler.allocator.free
assert not set(writing) & set(free), f"pages {writing} are being written to, and are free"
""",
    ),
    Fault(
        number=43,
        stage="08",
        symptom="Prompts of certain lengths crash the decode worker. Every sixteenth length is affected.",
        difficulty=2,
        hints=(
            "Which tokens have K and V when a prompt is handed over? Not the one that has just been drawn.",
            "Count pages on both sides for a prompt that fills its last page exactly.",
        ),
        story="The decode side knows the prompt and one more token, and reserves pages for all of them. Only those of "
        "the prompt have been computed. Where the prompt ends with a page, it asks for one page more than there "
        "is. In vLLM an assertion caught the same; a variant with a cached beginning took the wrong pages "
        "without a word.",
        source="vllm-project/vllm#50558",
        file="08_disaggregated/worker.py",
        old="self.scheduler.allocator.pages_for(request.num_tokens - 1)",
        new="self.scheduler.allocator.pages_for(request.num_tokens)",
        caught_by="tests/stages/test_08_disaggregated.py::test_what_decode_has_already_does_not_travel",
        reproduce="""
from faulty_fleet import fleet_without_model

router, fleet = fleet_without_model(1, 1)  # pages of two tokens
for length in (1, 2, 3, 4, 5):
    router.add([length] * length, endless(max_tokens=4))
    finish(router)
""",
    ),
    Fault(
        number=44,
        stage="08",
        symptom="After the network has been slow for a moment, some streams repeat a word or two.",
        difficulty=2,
        hints=(
            "A message may come twice. What does the router do with tokens that it has already?",
            "A gain says which place in the output its tokens take.",
        ),
        story="A message that was sent again, because its receipt was not certain, is taken for news, and its tokens "
        "are appended once more. A server that resumes a stream elsewhere needs an answer to what is already there. "
        "Dynamo replayed tokens to a new worker whose grammar began again, and clients got JSON with parts in "
        "it twice.",
        source="ai-dynamo/dynamo#7930",
        file="08_disaggregated/router.py",
        old="for place, token_id in enumerate(gain.token_ids[known:], known):",
        new="for place, token_id in enumerate(gain.token_ids):",
        caught_by=MESSAGES.format("test_every_report_may_come_twice"),
        reproduce="""
from faulty_fleet import fleet_without_model, next_token

router, fleet = fleet_without_model(1, 1)
deliver = fleet.events
fleet.events = lambda seconds: [event for event in deliver(seconds) for _ in range(2)]
request = router.add([1, 2, 3], endless(max_tokens=5))
finish(router)
wanted = []
while len(wanted) < 5:
    wanted.append(next_token([1, 2, 3, *wanted]))
assert request.token_ids == wanted, (request.token_ids, wanted)
""",
    ),
    Fault(
        number=45,
        stage="08",
        symptom="Under load prompts are computed twice, and requests_resumed grows, although no worker has died.",
        difficulty=3,
        hints=(
            "A heartbeat says which orders a worker holds. Since when is that so?",
            "An order that is still on its way is not held. How can the router know that?",
        ),
        story="A heartbeat is as old as its journey. An order that was sent meanwhile is missing in it, and the "
        "router takes it for lost and begins again. So each heartbeat names the newest mail that the worker has "
        "read, and only older orders can be missing. An order that another had overtaken once left requests of "
        "this repository in prefill for ever; since that commit mail is numbered.",
        source="this repository, commit fe1958a",
        file="08_disaggregated/recovery.py",
        old="if mail <= heartbeat.mail and (key not in heartbeat.held or told_too_late):",
        new="if key not in heartbeat.held or told_too_late:",
        caught_by=MESSAGES.format("test_an_order_on_its_way_is_not_missing_in_a_heartbeat"),
        reproduce="""
from faulty_fleet import fleet_without_model

router, fleet = fleet_without_model(1, 1)
fleet.at_once = False
request = router.add([1, 2, 3], endless(max_tokens=5))
router.step()  # the order is on its way
fleet.reports[0].append(fleet.workers[0].turn(heartbeat=True))
router.step()
assert router.recovery.resumed == 0, "it was taken for lost"
""",
    ),
    Fault(
        number=46,
        stage="08",
        symptom="After users have cancelled long answers, new requests wait for nothing: decode workers are idle.",
        difficulty=3,
        hints=(
            "How does the router know how much room a worker has?",
            "When does a worker that computes nothing report?",
        ),
        story="The router counts free pages by the reports of workers, and reports came with results. A cancelled "
        "request frees pages and has no results, so an idle worker never said that it had room. This repository "
        "had the fault until that commit. What others wait for has to be told when it changes.",
        source="this repository, commit a7136b5",
        file="08_disaggregated/worker.py",
        old="        if heartbeat or available != self.told_available:\n",
        new="        if heartbeat or report.gains:\n",
        caught_by=MESSAGES.format("test_room_of_a_cancelled_request_is_told"),
        reproduce="""
from faulty_fleet import fleet_without_model

router, fleet = fleet_without_model(1, 1)
first = router.add([1, 2, 3], endless(max_tokens=18))
while len(first.token_ids) <= 12:
    router.step()
router.abort(first.request_id)
second = router.add([2] * 12, endless(max_tokens=6))
for _ in range(100):
    router.step()
assert second.finished, [flight.phase for flight in router.flights.values()]
""",
    ),
]
