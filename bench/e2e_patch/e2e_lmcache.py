"""LMCache 0.5.6 has no connector between vLLM's KV cache on a CPU and its own memory: CreateGPUConnector ends with "No supported cpu connector
found". This adds one to a server that is patched with it. What LMCache does with its chunks stays its own.

vLLM on CPU keeps a block's keys and values together and in an order of its own, so only whole blocks are copied; LMCache's chunks are two of them.
"""

MODULE = "lmcache.v1.gpu_connector"
BLOCK_TOKENS = 128


def make_class(interface, torch):
    class WholeBlocks(interface):
        def __init__(self, metadata):
            layers, halves, _, heads, size = metadata.kv_shape
            self.shape = (halves, layers, heads * size)
            self.kvcaches = None

        def initialize_kvcaches_ptr(self, **named):
            if "kvcaches" in named:
                self.kvcaches = list(named["kvcaches"])

        def get_shape(self, num_tokens):
            halves, layers, width = self.shape
            return torch.Size([halves, layers, num_tokens, width])

        def _pairs(self, memory, start, end, named):
            """(place in the chunk, place in the cache, numbers of blocks) of each layer's keys and values."""
            self.initialize_kvcaches_ptr(**named)
            if start % BLOCK_TOKENS or end % BLOCK_TOKENS:
                raise ValueError(f"tokens {start} to {end} are not whole blocks")
            blocks = named["slot_mapping"][start:end:BLOCK_TOKENS] // BLOCK_TOKENS
            for layer, cache in enumerate(self.kvcaches):
                # A block of a layer holds its keys and its values; which half is which does not matter here.
                halves = cache.view(cache.shape[0], 2, -1)
                for half in range(2):
                    yield memory.tensor[half][layer].view(len(blocks), -1), halves[:, half], blocks

        def from_gpu(self, memory_obj, start, end, **named):
            for chunk, cache, blocks in self._pairs(memory_obj, start, end, named):
                chunk.copy_(cache[blocks])

        def to_gpu(self, memory_obj, start, end, **named):
            for chunk, cache, blocks in self._pairs(memory_obj, start, end, named):
                cache[blocks] = chunk

        def batched_from_gpu(self, memory_objs, starts, ends, **named):
            for memory_obj, start, end in zip(memory_objs, starts, ends):
                self.from_gpu(memory_obj, start, end, **named)

        def batched_to_gpu(self, memory_objs, starts, ends, **named):
            for memory_obj, start, end in zip(memory_objs, starts, ends):
                self.to_gpu(memory_obj, start, end, **named)

    return WholeBlocks


def patch(module):
    import torch

    whole_blocks = make_class(module.GPUConnectorInterface, torch)
    module.CreateGPUConnector = lambda config, metadata, engine, layout_hints=None: whole_blocks(metadata)
