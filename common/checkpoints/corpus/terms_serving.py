"""The glossary, second half: what a server puts around the model. The format is that of `terms_model`."""

TERMS = """
= KV cache | a KV cache
A KV cache stores the attention keys and values of earlier tokens, so that each new token is computed without
repeating the work for the whole sequence.
> Without a KV cache the work for each new token would grow with the length of the whole sequence.
= inference engine | an inference engine
An inference engine is the part of a server that runs the model, keeps the KV cache and decides what each step
computes.
> A good inference engine serves many times more requests on the same GPU than a simple loop.
= prefill | prefill
Prefill is the first phase of a request, in which the model reads all tokens of the prompt in parallel and
fills the KV cache.
> Prefill is limited by arithmetic, and it decides how long the user waits for the first token.
= decode | decode
Decode is the second phase of a request, in which the model produces one token per step and adds its keys and
values to the KV cache.
> Decode is limited by memory bandwidth, so it pays to decode many requests together.
= batch | a batch
A batch is a group of requests whose tokens go through the model together in one step.
> In a batch the weights are read once for all requests, so decoding many costs little more than decoding one.
= ragged batch | a ragged batch
A ragged batch lays the tokens of requests with different lengths end to end in one sequence, without any
padding.
> With a ragged batch no work is wasted on padding, and prefill and decode can share a step.
= static batching | static batching
Static batching starts a group of requests together and takes no new ones until the longest of them is
complete.
> Static batching leaves much of the GPU idle, because short answers must wait for long ones.
= continuous batching | continuous batching
Continuous batching decides anew before every step which requests run, so that a new one can join as soon as
another is complete.
> Continuous batching keeps the batch full, which raises the throughput several times over.
= chunked prefill | chunked prefill
Chunked prefill cuts a long prompt into pieces and computes one piece per step, next to the decode tokens of
other requests.
> Chunked prefill keeps one long prompt from blocking the tokens of everybody else.
= token budget | a token budget
A token budget is the largest number of tokens, from prefill and decode together, that the scheduler puts into
one step.
> A token budget bounds the time of a step, and so the inter-token latency.
= scheduler | a scheduler
A scheduler decides before each step which requests run, how many tokens each of them gets, and which must
wait.
> The scheduler makes the trade between the throughput of the server and the latency of each request.
= page | a page | block, KV block
A page is a fixed-size piece of the KV cache that holds the keys and values of a small number of tokens.
> Pages of one size can be given to any request, so memory is not lost in gaps.
= page table | a page table | block table
A page table lists, for one request, which pages of the KV cache hold its tokens, in the order of the
sequence.
> A page table lets a sequence lie anywhere in memory, so it can grow without being moved.
= slot mapping | a slot mapping
A slot mapping says for each token of a step into which slot of the KV cache its keys and values must be
written.
> The slot mapping lets one kernel write the tokens of all requests at once.
= paged attention | paged attention
Paged attention computes attention over keys and values that lie in separate pages, and finds them with the
page table of each request.
> With paged attention almost no cache memory is wasted, so more requests fit into a batch.
= fragmentation | fragmentation
Fragmentation is memory that is free or reserved but cannot be used, because it lies in pieces of the wrong
size or place.
> Fragmentation reduces the number of requests that fit into memory, and with it the throughput.
= preemption | preemption
Preemption takes the cache pages away from a running request when memory runs out, and lets the request
continue later.
> Preemption lets the server accept more requests than it could hold if all of them grew to full length.
= prefix cache | a prefix cache
A prefix cache keeps the keys and values of earlier prompts, so that a new request that begins alike need not
compute them again.
> A prefix cache shortens the time to first token when many requests share a system prompt.
= radix tree | a radix tree
A radix tree stores many sequences by sharing their common beginnings, with one branch wherever they begin to
differ.
> A radix tree finds the longest cached prefix of a new prompt in one walk from the root.
= LRU eviction | LRU eviction | least recently used eviction
LRU eviction frees memory by removing the cache entry that has not been used for the longest time.
> LRU eviction keeps popular prefixes in the cache without anyone having to mark them.
= reference count | a reference count
A reference count is the number of requests that use a page at the moment, and the page may be freed only when
it is zero.
> Without a reference count a shared page could be overwritten while another request still reads it.
= speculative decoding | speculative decoding
Speculative decoding lets a cheap drafter propose several tokens, which the large model then checks together
in one pass.
> Speculative decoding gives several tokens for one reading of the weights, when the proposals are good.
= draft model | a draft model
A draft model is a small, fast model that proposes tokens for a larger model with the same vocabulary to
check.
> The draft model decides both what a proposal costs and how often it is accepted.
= acceptance rate | an acceptance rate
An acceptance rate is the share of drafted tokens that the large model accepts in speculative decoding.
> With a low acceptance rate the cost of drafting and checking is larger than the gain.
= rejection sampling | rejection sampling
Rejection sampling accepts a drafted token with a probability that depends on both models, and otherwise draws
a corrected token in its place.
> Rejection sampling makes sure that speculation never changes the distribution of the answers.
= prompt lookup | prompt lookup
Prompt lookup drafts tokens without a model, by finding the last few tokens earlier in the text and proposing
what followed them there.
> Prompt lookup costs almost nothing, and it works well when an answer repeats parts of its prompt.
= disaggregated serving | disaggregated serving | disaggregation
Disaggregated serving runs prefill and decode on separate workers and sends the KV cache of each request from
one to the other.
> Disaggregated serving keeps long prompts from delaying tokens, and each phase can be scaled alone.
= router | a router
A router receives the requests and sends each of them to one of several workers, by their load or by the
prefixes they hold.
> A good router sends a request to the worker that already holds its prefix.
= worker | a worker
A worker is a process that holds the model, often on its own GPU, and computes the steps it is given.
> When a worker fails, its requests must be given to another one or they are lost.
= time to first token | time to first token | TTFT
Time to first token is the time from the arrival of a request until the first token of its answer is sent.
> Time to first token is the wait that a user feels most, and it grows with the queue and the prompt.
= inter-token latency | inter-token latency | ITL
Inter-token latency is the time between two neighbouring tokens of one answer while it is streamed.
> Inter-token latency should stay below the time that a reader needs for a word.
= throughput | throughput
Throughput is the number of tokens or requests that a server completes per second over all its users.
> Throughput decides how many GPUs a service needs, and so what it costs.
= goodput | goodput
Goodput counts only those requests per second that are completed within their latency targets.
> A server can have a high throughput and a low goodput, if its answers come too late.
= latency | latency
Latency is the time that one request, or one part of it, has to wait for its result.
> A larger batch often raises the throughput but also the latency, so the two must be balanced.
= tail latency | tail latency
Tail latency is the latency of the slowest few requests, such as the slowest one in a hundred.
> An average hides the tail latency, but the users who meet it remember it.
= percentile | a percentile
A percentile is the value below which a given share of the measurements lies, so half of them lie below the
50th.
> A high percentile, such as the 99th, shows what the unlucky users see.
= roofline | a roofline | roofline model
A roofline is a plot of the best possible speed of a kernel against its arithmetic intensity, bounded by
memory bandwidth and by peak compute.
> The roofline shows whether a kernel is limited by memory or by arithmetic before anyone tunes it.
= memory bandwidth | memory bandwidth
Memory bandwidth is the number of bytes per second that a processor can move between its memory and its
compute units.
> Memory bandwidth limits decoding, because all weights must be read for every step.
= arithmetic intensity | arithmetic intensity
Arithmetic intensity is the number of arithmetic operations that a computation does for each byte it moves
from or to memory.
> A batch raises the arithmetic intensity of decoding, because each weight is used for many requests.
= GPU | a GPU
A GPU is a processor with thousands of simple compute units and very fast memory, built to do the same
operation on many numbers at once.
> A GPU is fast only when it gets enough work at once, which is why servers batch requests.
= CUDA kernel | a CUDA kernel | kernel
A CUDA kernel is a function that runs on an NVIDIA GPU in many threads at the same time.
> Each launch of a CUDA kernel costs a few microseconds, which adds up when the kernels are small.
= Triton | Triton
Triton is a language and compiler inside Python in which GPU kernels are written for blocks of data and not
for single threads.
> With Triton a paged attention kernel takes about a hundred lines and still runs fast.
= CUDA graph | a CUDA graph
A CUDA graph records a sequence of kernel launches once, and then replays all of them with a single call.
> A CUDA graph removes the launch cost of hundreds of small kernels from each decode step.
= tensor parallelism | tensor parallelism
Tensor parallelism splits the weight matrices of each layer over several GPUs, which compute their parts at
the same time and then add up the results.
> Tensor parallelism serves models that do not fit on one GPU, at the price of communication in every layer.
= streaming | streaming
Streaming sends each piece of an answer to the user as soon as it is generated, and does not wait for the
whole.
> Streaming lets the user begin to read at the first token, so the wait feels short.
= server-sent events | + server-sent events | SSE
Server-sent events are a simple way to send a stream of text messages from a server to a client over one open
HTTP response.
> Server-sent events need no special client, so most LLM servers stream with them.
= queue | a queue
A queue holds the requests that have arrived but are not yet running, usually in the order of their arrival.
> When a queue grows without end, every request waits longer than the one before.
= backpressure | backpressure
Backpressure is a signal from an overloaded server that makes its callers slow down or wait, such as a full
queue that refuses new requests.
> Without backpressure an overloaded server accepts more work than it can do, and all its users wait.
"""
