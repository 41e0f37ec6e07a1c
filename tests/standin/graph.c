/* Graphs: their nodes, copies, instantiation and execution.
 *
 * Nodes are numbered in the order of their creation. The nodes of a graph come first, followed by the nodes of each
 * graph within it, recursively. An executable graph has its own number. CUPTI gets this number and the node's
 * number, like on an H200 with driver 580. */
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

static void clear(CUgraph graph);

static void drop(CUgraph graph)
{
    if (graph == NULL)
        return;
    clear(graph);
    free(graph);
}

static void clear(CUgraph graph)
{
    for (size_t i = 0; i < graph->count; i++) {
        drop(graph->nodes[i]->child);
        drop(graph->nodes[i]->otherwise);
        free(graph->nodes[i]);
    }
    free(graph->nodes);
    *graph = (struct CUgraph_st){0};
}

/* Copies a node. If the node contains graphs, these are copied, too. */
static CUresult copy_node(struct node *to, const struct node *from)
{
    CUresult result = CUDA_SUCCESS;
    *to = *from;
    to->child = to->otherwise = NULL;
    if (from->child != NULL)
        result = cuGraphClone(&to->child, from->child);
    if (result == CUDA_SUCCESS && from->otherwise != NULL)
        result = cuGraphClone(&to->otherwise, from->otherwise);
    return result;
}

static CUresult copy(CUgraph to, CUgraph from)
{
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < from->count && result == CUDA_SUCCESS; i++) {
        struct node node;
        result = copy_node(&node, from->nodes[i]);
        if (result == CUDA_SUCCESS && !graph_add(to, node))
            result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    return result;
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
    drop(graph);
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
    if (nodes != NULL && *count == 0)
        return CUDA_ERROR_INVALID_VALUE;
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
        [CONDITIONAL_NODE] = CU_GRAPH_NODE_TYPE_CONDITIONAL,
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
    CUresult result = cuGraphClone(&kept, child);
    if (result != CUDA_SUCCESS)
        return result;
    driver_lock();
    bool added = graph_add(graph, (struct node){.kind = CHILD_NODE, .child = kept});
    if (added)
        *node = (CUgraphNode)graph->nodes[graph->count - 1];
    driver_unlock();
    return added ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *graph)
{
    *graph = ((struct node *)node)->child;
    return *graph == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode of, CUDA_KERNEL_NODE_PARAMS *params)
{
    const struct node *node = (struct node *)of;
    if (node->kind != KERNEL_NODE)
        return CUDA_ERROR_INVALID_HANDLE;
    *params = (CUDA_KERNEL_NODE_PARAMS){
        .func = kept_function(node->name), .gridDimX = node->grid[0], .gridDimY = node->grid[1], .gridDimZ = node->grid[2]};
    return CUDA_SUCCESS;
}

/* Creates a condition. Its handle is its value plus 1, so that a handle is never 0. */
CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle *handle, CUgraph graph, CUcontext context,
                                        unsigned int value, unsigned int flags)
{
    (void)graph, (void)context, (void)flags;
    *handle = value + 1ULL;
    return CUDA_SUCCESS;
}

/* Adds a node to a graph. Only conditional nodes are supported by this function. */
static CUresult add_node(CUgraphNode *node, CUgraph graph, CUgraphNodeParams *params)
{
    if (params->type != CU_GRAPH_NODE_TYPE_CONDITIONAL || params->conditional.size - 1 > 1)
        return CUDA_ERROR_INVALID_VALUE;
    static _Thread_local CUgraph bodies[2];
    bodies[0] = bodies[1] = NULL;
    for (unsigned int i = 0; i < params->conditional.size; i++)
        if (cuGraphCreate(&bodies[i], 0) != CUDA_SUCCESS)
            return CUDA_ERROR_OUT_OF_MEMORY;
    driver_lock();
    bool added = graph_add(graph, (struct node){.kind = CONDITIONAL_NODE, .child = bodies[0], .otherwise = bodies[1],
                                                .condition = (unsigned int)params->conditional.handle - 1});
    if (added)
        *node = (CUgraphNode)graph->nodes[graph->count - 1];
    driver_unlock();
    params->conditional.phGraph_out = bodies;
    return added ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                        CUgraphNodeParams *params)
{
    (void)dependencies, (void)count;
    return add_node(node, graph, params);
}

CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                           const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *params)
{
    (void)dependencies, (void)edges, (void)count;
    return add_node(node, graph, params);
}

CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraph child)
{
    (void)node;
    CUgraph kept;
    CUresult result = cuGraphClone(&kept, child);
    driver_lock();
    /* Only the first child graph is updated, because no test has a graph with two of them. */
    for (size_t i = 0; result == CUDA_SUCCESS && i < exec->graph.count; i++)
        if (exec->graph.nodes[i]->kind == CHILD_NODE) {
            drop(exec->graph.nodes[i]->child);
            exec->graph.nodes[i]->child = kept;
            break;
        }
    driver_unlock();
    return result;
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
    struct CUgraph_st now = {0};
    CUresult result = same ? copy(&now, graph) : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    if (result == CUDA_SUCCESS) {
        clear(&exec->graph);
        exec->graph = now;
    }
    driver_unlock();
    return result;
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

/* Returns the number under which CUPTI knows a node: the node's number plus STANDIN_NODE_SHIFT. A test sets the
 * shift to imitate a driver that numbers nodes in an unknown way. */
static unsigned int shifted(size_t node)
{
    const char *shift = getenv("STANDIN_NODE_SHIFT");
    return (unsigned int)node + (shift != NULL ? (unsigned int)atoi(shift) : 0);
}

/* All graphs that a graph contains, with the number of the first node of each. */
struct inner {
    CUgraph graphs[64];
    size_t firsts[64], count;
};

static void put(struct inner *inner, CUgraph graph)
{
    if (graph == NULL || inner->count == 64)
        return;
    size_t at = inner->count++;
    inner->graphs[at] = graph;
    if (at > 0)
        inner->firsts[at] = inner->firsts[at - 1] + inner->graphs[at - 1]->count;
    for (size_t i = 0; i < graph->count; i++) {
        put(inner, graph->nodes[i]->child);
        put(inner, graph->nodes[i]->otherwise);
    }
}

static CUresult run(CUgraph graph, const struct inner *inner, unsigned int exec, CUstream stream)
{
    CUresult result = CUDA_SUCCESS;
    size_t at = 0;
    if (graph == NULL)
        return result;
    while (inner->graphs[at] != graph)
        at++;
    for (size_t i = 0; i < graph->count && result == CUDA_SUCCESS; i++) {
        const struct node *node = graph->nodes[i];
        if (node->kind == CHILD_NODE || (node->kind == CONDITIONAL_NODE && node->condition != 0))
            result = run(node->child, inner, exec, stream);
        else if (node->kind == CONDITIONAL_NODE)
            result = run(node->otherwise, inner, exec, stream);
        else if (node->kind != EMPTY_NODE)
            result = submit(stream, *node, exec, shifted(inner->firsts[at] + i));
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
    if (result == CUDA_SUCCESS) {
        struct inner inner = {0};
        put(&inner, &exec->graph);
        result = run(&exec->graph, &inner, exec->number, stream);
    }
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
