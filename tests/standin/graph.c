/* Graphs: their nodes, how they are copied and made executable, and what runs of them.
 *
 * Nodes are numbered in the order in which they were made. An executable graph has a number of its own, and CUPTI gets that
 * number and the node's, as on an H100 with driver 580. How the nodes of a graph within a graph are numbered is not known:
 * here they are numbered from 0, like those around it. */
#include "driver.h"

#include <stdatomic.h>
#include <stdlib.h>

static atomic_uint last_exec;

bool graph_add(CUgraph graph, struct node node)
{
    if (graph->count == graph->room) {
        size_t room = graph->room == 0 ? 8 : 2 * graph->room;
        struct node **nodes = realloc(graph->nodes, room * sizeof *nodes);
        if (nodes == NULL)
            return false;
        graph->nodes = nodes;
        graph->room = room;
    }
    struct node *made = malloc(sizeof *made);
    if (made == NULL)
        return false;
    *made = node;
    graph->nodes[graph->count++] = made;
    return true;
}

static void clear(CUgraph graph)
{
    for (size_t i = 0; i < graph->count; i++)
        free(graph->nodes[i]);
    free(graph->nodes);
    *graph = (struct CUgraph_st){0};
}

static CUresult copy(CUgraph to, CUgraph from)
{
    for (size_t i = 0; i < from->count; i++)
        if (!graph_add(to, *from->nodes[i]))
            return CUDA_ERROR_OUT_OF_MEMORY;
    return CUDA_SUCCESS;
}

CUresult cuGraphCreate(CUgraph *graph, unsigned int flags)
{
    (void)flags;
    *graph = calloc(1, sizeof **graph);
    return *graph == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph graph)
{
    if (graph == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    clear(graph);
    free(graph);
    return CUDA_SUCCESS;
}

CUresult cuGraphClone(CUgraph *clone, CUgraph original)
{
    if (original == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = cuGraphCreate(clone, 0);
    return result == CUDA_SUCCESS ? copy(*clone, original) : result;
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    driver_lock();
    for (size_t i = 0; nodes != NULL && i < *count; i++)
        nodes[i] = i < graph->count ? (CUgraphNode)graph->nodes[i] : NULL;
    if (nodes == NULL || *count > graph->count)
        *count = graph->count;
    driver_unlock();
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type)
{
    static const CUgraphNodeType types[] = {
        [KERNEL_NODE] = CU_GRAPH_NODE_TYPE_KERNEL, [COPY_NODE] = CU_GRAPH_NODE_TYPE_MEMCPY,
        [SET_NODE] = CU_GRAPH_NODE_TYPE_MEMSET,    [CHILD_NODE] = CU_GRAPH_NODE_TYPE_GRAPH,
        [EMPTY_NODE] = CU_GRAPH_NODE_TYPE_EMPTY,   [HOST_NODE] = CU_GRAPH_NODE_TYPE_HOST,
        [WAIT_NODE] = CU_GRAPH_NODE_TYPE_WAIT_EVENT,
        [RECORD_NODE] = CU_GRAPH_NODE_TYPE_EVENT_RECORD,
        [ALLOC_NODE] = CU_GRAPH_NODE_TYPE_MEM_ALLOC,
        [FREE_NODE] = CU_GRAPH_NODE_TYPE_MEM_FREE,
    };
    *type = types[((struct node *)node)->kind];
    return CUDA_SUCCESS;
}

CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                             size_t count)
{
    (void)dependencies, (void)count;
    driver_lock();
    bool added = graph_add(graph, (struct node){.kind = EMPTY_NODE});
    if (added)
        *node = (CUgraphNode)graph->nodes[graph->count - 1];
    driver_unlock();
    return added ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                  size_t count, CUgraph child)
{
    (void)dependencies, (void)count;
    CUgraph kept;
    CUresult result = cuGraphClone(&kept, child); /* never freed: tests add few */
    if (result != CUDA_SUCCESS)
        return result;
    driver_lock();
    bool added = graph_add(graph, (struct node){.kind = CHILD_NODE, .child = kept});
    if (added)
        *node = (CUgraphNode)graph->nodes[graph->count - 1];
    driver_unlock();
    return added ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                 size_t count, const CUDA_KERNEL_NODE_PARAMS *params)
{
    (void)dependencies, (void)count;
    driver_lock();
    struct node made = {
        .name = kept_function(params->func->name)->name,
        .grid = {params->gridDimX, params->gridDimY, params->gridDimZ},
    };
    bool added = graph_add(graph, made);
    if (added)
        *node = (CUgraphNode)graph->nodes[graph->count - 1];
    driver_unlock();
    return added ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    (void)flags;
    if (graph == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    CUgraphExec made = calloc(1, sizeof *made);
    if (made == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->number = atomic_fetch_add(&last_exec, 1) + 1;
    CUresult result = copy(&made->graph, graph);
    if (result != CUDA_SUCCESS) {
        cuGraphExecDestroy(made);
        return result;
    }
    *exec = made;
    return CUDA_SUCCESS;
}

CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info)
{
    (void)info;
    driver_lock();
    bool same = exec->graph.count == graph->count;
    for (size_t i = 0; same && i < graph->count; i++)
        same = exec->graph.nodes[i]->kind == graph->nodes[i]->kind;
    for (size_t i = 0; same && i < graph->count; i++)
        *exec->graph.nodes[i] = *graph->nodes[i];
    driver_unlock();
    return same ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    if (exec == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    clear(&exec->graph);
    free(exec);
    return CUDA_SUCCESS;
}

unsigned int standin_exec_number(CUgraphExec exec)
{
    return exec->number;
}

/* The nodes of a graph by STANDIN_NODE_SHIFT, for tests of what happens where numbers mean something else. */
static unsigned int shifted(size_t node)
{
    const char *shift = getenv("STANDIN_NODE_SHIFT");
    return (unsigned int)node + (shift != NULL ? (unsigned int)atoi(shift) : 0);
}

static CUresult run(CUgraph graph, unsigned int exec, CUstream stream)
{
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < graph->count && result == CUDA_SUCCESS; i++) {
        const struct node *node = graph->nodes[i];
        if (node->kind == CHILD_NODE)
            result = run(node->child, exec, stream);
        else if (node->kind != EMPTY_NODE)
            result = submit(stream, *node, exec, shifted(i));
    }
    return result;
}

static CUresult launch_graph(const char *function, CUgraphExec exec, CUstream stream)
{
    tool_enter();
    driver_lock();
    CUresult result = call_admit(function, exec, NEEDS_CONTEXT);
    if (result == CUDA_SUCCESS && exec == NULL)
        result = CUDA_ERROR_INVALID_HANDLE;
    pass_call();
    if (result == CUDA_SUCCESS)
        result = run(&exec->graph, exec->number, stream);
    driver_unlock();
    return call_end(function, result);
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    return launch_graph("cuGraphLaunch", exec, stream_of(stream, false));
}

#ifndef LACKING
CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
    return launch_graph("cuGraphLaunch_ptsz", exec, stream_of(stream, true));
}
#endif
