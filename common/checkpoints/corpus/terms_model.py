"""The glossary, first half: what is inside the model, and how the next token is chosen.

Each entry is "= term | the term with its article | other names", then one sentence that explains it, then,
after ">", one sentence that says why it matters. An article of "+" marks a plural.
"""

TERMS = """
= token | a token
A token is a small piece of text, often a word or a part of a word, that a language model reads and writes as
a single number.
> A token is the unit in which the work, the memory and the price of a request are counted.
= tokenizer | a tokenizer
A tokenizer turns text into a list of token numbers before the model runs, and turns the numbers that the
model chose back into text.
> The model only makes sense of text that was cut by the same tokenizer with which it was trained.
= vocabulary | a vocabulary
A vocabulary is the fixed list of all the tokens that a model knows, each with its own number.
> The size of the vocabulary decides how wide the logits are and how large the embedding table is.
= byte-pair encoding | byte-pair encoding | BPE
Byte-pair encoding builds a vocabulary by starting from single bytes and joining the most frequent
neighbouring pair again and again.
> With byte-pair encoding every text can be written as tokens, and common words need only one token.
= embedding | an embedding
An embedding is the vector of numbers that stands for a token when it enters the model.
> The embedding gives similar tokens similar vectors, so what the model learns about one helps with the
others.
= language model | a language model | LLM
A language model reads a sequence of tokens and gives a probability to every token that could come next.
> A language model that predicts the next token well can answer, explain and write, one token at a time.
= transformer | a transformer
A transformer is a neural network of equal layers, each with an attention block that mixes tokens and a
feed-forward block that works on each token alone.
> A transformer can process all tokens of a prompt in parallel, which suits a GPU very well.
= attention | attention
Attention lets each token look at the earlier tokens, weigh them by the match of its query with their keys,
and add up their values.
> Attention is the only place in the model where tokens exchange information, and the only part that needs a
KV cache.
= attention head | an attention head
An attention head is one of several independent attentions in a layer, with its own queries, keys and values
of a smaller dimension.
> Several attention heads let one layer look for several kinds of relations between tokens at once.
= multi-head attention | multi-head attention
Multi-head attention runs several attention heads side by side in a layer and joins their results with one
final projection.
> In multi-head attention every head stores its own keys and values, so the KV cache is large.
= grouped-query attention | grouped-query attention | GQA
Grouped-query attention lets several query heads share one key and value head, so that fewer keys and values
need to be stored.
> Grouped-query attention makes the KV cache several times smaller with little loss of quality.
= causal mask | a causal mask
A causal mask hides all later tokens from each token, so that attention can only look at the token itself and
at what came before.
> The causal mask means that earlier tokens never change when a new one is added, so their keys and values can
be kept.
= query vector | a query vector
A query vector says what a token is looking for, and attention compares it with the key vector of every
earlier token.
> The query vector is used once and then forgotten, so only keys and values need a cache.
= key vector | a key vector
A key vector says what a token has to offer, and its match with a query vector decides how much attention the
token receives.
> A key vector never changes after it was computed, so it can be stored in the KV cache.
= value vector | a value vector
A value vector carries the information that a token passes on to those later tokens that pay attention to it.
> A value vector is read again for every new token, so it is stored in the KV cache next to its key.
= rotary position embedding | a rotary position embedding | RoPE
A rotary position embedding turns the queries and keys by an angle that grows with their position, so that
their match depends on the distance between them.
> A rotary position embedding lets keys be cached after the rotation, because their position never changes.
= RMSNorm | RMSNorm
RMSNorm divides a vector by its root mean square and multiplies it by learned weights, which keeps the size of
the numbers stable.
> RMSNorm is cheaper than full layer normalisation, because it needs neither a mean nor a bias.
= SwiGLU | SwiGLU
SwiGLU is a feed-forward block in which one projection, passed through a smooth gate, is multiplied with a
second projection before the third projects it back.
> SwiGLU gives better quality for the same number of parameters than a plain feed-forward block.
= residual stream | a residual stream
A residual stream is the vector of a token that runs through all layers, and to which each block adds its
result.
> The residual stream lets information pass through many layers without being lost.
= layer | a layer
A layer is one of the equal building blocks of a transformer, with an attention block and a feed-forward
block.
> Each layer keeps its own keys and values, so the KV cache grows with the number of layers.
= parameter | a parameter | weight
A parameter is one of the numbers that a model learned in training and that stay fixed while it serves
requests.
> Every parameter must be read from memory for every decode step, so their number limits the speed.
= checkpoint | a checkpoint
A checkpoint is a folder or file that holds the trained parameters of a model, with its configuration and its
tokenizer.
> A checkpoint lets a server start from a trained model without training it again.
= safetensors | safetensors
Safetensors is a simple file format for the weights of a model, with a header that says where each tensor lies
and no code that could run.
> Safetensors files can be mapped into memory, so loading is fast and safe.
= bfloat16 | bfloat16
Bfloat16 is a number format of 16 bits that has the range of a 32-bit float but fewer digits of precision.
> With bfloat16 the weights and the KV cache need half of the memory that 32-bit floats need.
= quantisation | quantisation | quantization
Quantisation stores the weights of a model, and sometimes its KV cache, in fewer bits, such as 8 or 4, with a
scale for each group of numbers.
> Quantisation makes decoding faster, because fewer bytes must be read from memory for each token.
= logits | + logits
Logits are the raw scores that a model gives to every token of the vocabulary before they are turned into
probabilities.
> Temperature, top-k and top-p all work on the logits, so they are the point where sampling meets the model.
= softmax | softmax
Softmax turns a list of scores into probabilities by taking the exponential of each score and dividing by
their sum.
> Softmax is used twice, inside attention to weigh the tokens and at the end to choose the next token.
= log probability | a log probability | logprob
A log probability is the logarithm of the probability that a model gave to a token, so it is zero or negative.
> The log probability of a whole answer is the sum over its tokens, which is easier to handle than a tiny
product.
= perplexity | perplexity
Perplexity is the exponential of the average negative log probability per token, and it says between how many
tokens a model hesitates on average.
> A lower perplexity means that a model predicts the text better, so it shows what quantisation costs.
= sampling | sampling
Sampling draws the next token at random, where each token is as likely as the probability that the model gives
to it.
> Sampling makes the answers varied, while greedy decoding always gives the same one.
= temperature | temperature
Temperature is the number by which the logits are divided before the softmax, so a low value makes likely
tokens even more likely.
> Temperature lets the caller choose between safe answers and varied answers.
= top-p | top-p | nucleus sampling
Top-p sampling keeps the smallest set of most likely tokens whose probabilities add up to at least p, and
draws the next token from this set.
> Top-p cuts off the long tail of unlikely tokens, and it adapts to how sure the model is.
= top-k | top-k
Top-k sampling keeps only the k tokens with the highest logits and draws the next token from them.
> Top-k keeps very unlikely tokens from ever being chosen, at the cost of one fixed number for all cases.
= greedy decoding | greedy decoding
Greedy decoding always takes the token with the highest logit, so the same prompt gives the same answer.
> Greedy decoding makes tests easy, because two correct servers should give the same tokens.
= end-of-sequence token | an end-of-sequence token | EOS token
An end-of-sequence token is a special token with which the model says that its answer is complete.
> The end-of-sequence token lets the server free the memory of a request as soon as its answer is complete.
= stop string | a stop string
A stop string is a piece of text chosen by the caller that ends the answer as soon as it appears in the
output.
> A stop string may be split over several tokens, so a streaming server must hold back text that could begin
one.
= context window | a context window
A context window is the largest number of tokens, prompt and answer together, that a model can handle in one
request.
> The context window bounds the memory that a single request can ask for.
= chat template | a chat template
A chat template writes the messages of a conversation as one text, with special tokens that mark who is
speaking.
> A wrong chat template makes a good model answer badly, because it never saw such text in training.
= flash attention | flash attention
Flash attention computes exact attention in small tiles that stay in fast on-chip memory, so the full matrix
of scores is never written out.
> Flash attention saves memory traffic, so long prompts run much faster.
"""
