//! Combines samples of stacks into a call tree.

use std::cmp::Reverse;
use std::collections::HashMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::FunctionSamples;
use crate::events::samples::Frames;

/// Maximum number of nodes of a call tree. The samples of further nodes are counted only in their
/// callers.
const MAX_NODES: usize = 2000;
/// Minimum share of all samples, as a fraction, for a node to be part of the finished tree.
const MIN_SHARE: f64 = 0.001;

/// A function of a call tree, as called by one caller or as the outermost function.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
pub struct TreeNode {
    /// The index in this list of the caller, which comes earlier in the list; `null` for an outermost function.
    pub parent: Option<usize>,
    #[serde(flatten)]
    pub of: FunctionSamples,
}

/// The nodes of a call tree. A caller comes before the functions that it calls. Functions with the
/// same caller are sorted by their number of samples, the largest first.
pub(crate) type Tree = Vec<TreeNode>;

/// Label of the node for samples that are in no Python function.
const OUTSIDE_LABEL: &str = "in no Python function";

/// A call tree under construction. Its first node stands for all samples.
#[derive(Debug, Default)]
pub(crate) struct TreeBuilder {
    nodes: Vec<SampledNode>,
    children: HashMap<(usize, Option<u32>), usize>,
}

#[derive(Debug)]
struct SampledNode {
    function: Option<u32>,
    parent: usize,
    samples: u64,
    asleep: u64,
}

impl TreeBuilder {
    /// Adds a sample. `stack` contains the functions of the sampled stack, the outermost first.
    pub(crate) fn add(&mut self, stack: &[u32], asleep: bool) {
        if self.nodes.is_empty() {
            self.node(0, None);
        }
        let mut at = 0;
        self.count(at, asleep);
        if stack.is_empty() {
            at = self.child(at, None);
            self.count(at, asleep);
        }
        for function in stack {
            at = self.child(at, Some(*function));
            self.count(at, asleep);
        }
    }

    fn count(&mut self, at: usize, asleep: bool) {
        let node = &mut self.nodes[at];
        node.samples += 1;
        node.asleep += u64::from(asleep);
    }

    fn child(&mut self, parent: usize, function: Option<u32>) -> usize {
        match self.children.get(&(parent, function)) {
            Some(known) => *known,
            None => {
                let new = self.node(parent, function);
                self.children.insert((parent, function), new);
                new
            }
        }
    }

    fn node(&mut self, parent: usize, function: Option<u32>) -> usize {
        self.nodes.push(SampledNode {
            function,
            parent,
            samples: 0,
            asleep: 0,
        });
        self.nodes.len() - 1
    }

    /// Returns the tree, without nodes below [`MIN_SHARE`]. Of the remaining nodes, only the [`MAX_NODES`] with the
    /// most samples are returned.
    pub(crate) fn finish(self, frames: &Frames) -> Tree {
        let Some(all) = self.nodes.first().map(|all| all.samples) else {
            return Tree::new();
        };
        // A caller has at least as many samples as each of its callees, and a lower index. So if a node stays in the
        // tree, its caller stays, too.
        let mut kept: Vec<_> = (1..self.nodes.len()).collect();
        kept.retain(|at| self.nodes[*at].samples as f64 >= all as f64 * MIN_SHARE);
        kept.sort_by_key(|at| (Reverse(self.nodes[*at].samples), *at));
        kept.truncate(MAX_NODES);
        let mut below: HashMap<usize, Vec<usize>> = HashMap::new();
        for at in kept {
            below.entry(self.nodes[at].parent).or_default().push(at);
        }
        let mut tree = Tree::new();
        let mut next: Vec<(usize, Option<usize>)> = Vec::new();
        let push = |next: &mut Vec<_>, at: usize, parent: Option<usize>| {
            let children = below.get(&at).into_iter().flatten().rev();
            next.extend(children.map(|child| (*child, parent)));
        };
        push(&mut next, 0, None);
        while let Some((at, parent)) = next.pop() {
            let node = &self.nodes[at];
            let (name, label) = match node.function {
                Some(function) => (frames.name(function), frames.label(function)),
                None => (OUTSIDE_LABEL, OUTSIDE_LABEL),
            };
            let of = FunctionSamples {
                name: name.to_owned(),
                label: label.to_owned(),
                samples: node.samples,
                asleep: node.asleep,
                share: node.samples as f64 / all.max(1) as f64,
            };
            tree.push(TreeNode { parent, of });
            push(&mut next, at, Some(tree.len() - 1));
        }
        tree
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_come_first_and_small_ones_are_left_out() {
        let mut builder = TreeBuilder::default();
        for _ in 0..1500 {
            builder.add(&[0, 1], false);
        }
        for _ in 0..3000 {
            builder.add(&[0, 2], true);
        }
        builder.add(&[0, 3], false);
        for _ in 0..10 {
            builder.add(&[], false);
        }
        let tree = builder.finish(&Frames::default());
        let found: Vec<_> = tree
            .iter()
            .map(|node| (node.parent, node.of.samples, node.of.asleep))
            .collect();
        let expected = [
            (None, 4501, 3000),
            (Some(0), 3000, 3000),
            (Some(0), 1500, 0),
            (None, 10, 0),
        ];
        assert_eq!(found, expected);
        assert_eq!(tree[3].of.name, OUTSIDE_LABEL);
        assert_eq!(TreeBuilder::default().finish(&Frames::default()), []);
    }
}
