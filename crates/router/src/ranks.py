# Gives each rank different rows of the table of balanced logits if the ranks have different tokens and share the
# experts. Then the load is balanced over all ranks together.


def _may_exchange():
    """Returns whether there are other ranks."""
    of_ranks = sys.modules.get("torch.distributed")
    return of_ranks is not None and of_ranks.is_available() and of_ranks.is_initialized() and of_ranks.get_world_size() > 1


def _may_become_several():
    """Returns whether there are other ranks, or will be once the program has joined them."""
    return _may_exchange() or os.environ.get("WORLD_SIZE", "1").strip() not in ("", "0", "1")


def _group(argument):
    """Returns the group of ranks if a collective's argument is one."""
    of_ranks = sys.modules["torch.distributed"]
    if isinstance(argument, str):
        return of_ranks.distributed_c10d._resolve_process_group(argument)
    return of_ranks.ProcessGroup.unbox(argument) if isinstance(argument, torch.ScriptObject) else None


def _watch_ranks(parent, layer):
    """Observes in the block's first call whether tokens go to their experts by an all-to-all: then each rank of the
    group has tokens of its own. Ranks that only add up their results have the same tokens, and the same rows."""
    done = []

    def note(exchange):
        done.append(True)
        if exchange.rank is not None:
            layer.part = exchange.rank

    _in_mode(parent, lambda: _Exchange() if _may_exchange() else None, lambda: done, note)


def _exchange_mode():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Exchange(TorchDispatchMode):
        """`rank`: this process's rank in the group of the first all-to-all."""

        # Without this flag torch refuses torch.cond and similar functions while this dispatch mode is active.
        supports_higher_order_operators = True

        def __init__(self):
            super().__init__()
            self.rank = None

        @classmethod
        def ignore_compile_internals(cls):
            return True

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if self.rank is None and function.namespace in ("c10d", "_c10d_functional"):
                self._look(function, args)
            return function(*args, **(kwargs or {}))

        @quietly
        def _look(self, function, args):
            if function._schema.name.split("::")[1] in ("alltoall_base_", "alltoall_", "all_to_all_single"):
                group = next((group for group in map(_group, args) if group is not None), None)
                if group is not None and group.size() > 1:
                    self.rank = group.rank()

    return Exchange
