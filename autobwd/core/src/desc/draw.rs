//! Drawings of programs, as Graphviz and Mermaid text. Both share one graph and differ in syntax only.

use std::{
    collections::{HashMap, HashSet},
    fmt::Write as _,
};

use indexmap::IndexMap;

use super::{Block, BlockId, OpDesc, Origin, Program, Var, text::TypeText};

impl Program {
    /// The program as a graph in the language of [Graphviz](https://graphviz.org). Operators are boxes. An arrow is a
    /// variable, from the operator that writes it to one that reads it. Ellipses are variables that are fed,
    /// persistable or not read again. Operators of the model are blue, of the backward pass orange, recomputed ones
    /// violet, updates of persistable variables green; parameters are yellow. Each block is a frame around its
    /// operators.
    ///
    /// ```
    /// # use autobwd::{Backward, Builder, DType, append_backward};
    /// # use autobwd_ops::{Init, Math};
    /// let net = Builder::new();
    /// let w = net.parameter("w", DType::F32, &[2], |w| Init::Constant(3.0).emit(w, 0));
    /// let loss = w.square().mean();
    /// let mut program = net.program()?.clone();
    /// append_backward(&mut program, &loss.name(), &Backward::default())?;
    /// let dot = program.to_dot(); // for `dot -Tsvg`
    /// assert!(dot.contains(r#"op0_0 -> op0_1 [label="square_0\nfloat32 [2]"]"#));
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    pub fn to_dot(&self) -> String {
        dot(self, Labels::default())
    }

    /// The program as a [Mermaid](https://mermaid.js.org) flow chart, which code hosts render; otherwise as
    /// [`to_dot`](Program::to_dot).
    pub fn to_mermaid(&self) -> String {
        mermaid(self, Labels::default())
    }
}

/// Additional labels of a drawing.
#[derive(Clone, Copy)]
pub struct Labels<'a> {
    /// The note of a variable, below its name and type.
    pub note: &'a dyn Fn(Var) -> Option<String>,
    /// The title of a block, above its frame.
    pub title: &'a dyn Fn(usize) -> String,
    /// The mark of a variable, which is then drawn as an ellipse between its operators.
    pub mark: &'a dyn Fn(Var) -> Option<Mark>,
}

/// The state of a value in a backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// It has no gradient yet, or needs none.
    Waiting,
    /// It is in the queue.
    Queued,
    /// It is the next to leave the queue.
    Next,
    /// The pass is done with it.
    Done,
}

impl Default for Labels<'_> {
    fn default() -> Self {
        Labels { note: &|_| None, title: &|block| format!("block {block}"), mark: &|_| None }
    }
}

/// As [`Program::to_dot`], with other labels.
pub fn dot(program: &Program, labels: Labels<'_>) -> String {
    let mut text = String::from(
        "digraph program {\n  compound=true\n  node [fontname=\"Helvetica\", fontsize=12, height=0.3, style=filled]\n  \
         edge [fontname=\"Helvetica\", fontsize=9, color=\"#555555\"]\n",
    );
    let picture = Drawing::of(program, labels);
    picture.in_blocks(&mut text, |text, part| match part {
        DrawnItem::Open(id) => {
            let title = dot_text(&(labels.title)(id));
            _ = writeln!(
                text,
                "subgraph cluster_{id} {{\n  label=\"{title}\"; fontname=\"Helvetica\"; color=\"#999999\""
            );
            // The invisible target of the arrow from the operator that runs the block.
            _ = writeln!(text, "  block{id} [shape=point, style=invis]");
        }
        DrawnItem::Close => text.push_str("}\n"),
        DrawnItem::Node(node) => {
            let (fill, line) = node.kind.colours();
            let shape = if node.kind.is_op() { "box" } else { "ellipse" };
            let (label, tooltip) = (dot_text(&node.label), dot_text(&node.tooltip));
            _ = writeln!(
                text,
                "  {} [label=\"{label}\", shape={shape}, fillcolor=\"{fill}\", color=\"{line}\", \
                 tooltip=\"{tooltip}\"]",
                node.name
            );
        }
    });
    for DrawnEdge { from, to, label, block } in &picture.edges {
        _ = match block {
            Some(id) => writeln!(text, "  {from} -> {to} [style=dashed, lhead=cluster_{id}]"),
            None if label.is_empty() => writeln!(text, "  {from} -> {to}"),
            None => writeln!(text, "  {from} -> {to} [label=\"{}\"]", dot_text(label)),
        };
    }
    text + "}\n"
}

/// As [`Program::to_mermaid`], with other labels.
pub fn mermaid(program: &Program, labels: Labels<'_>) -> String {
    let mut text = String::from("flowchart TD\n");
    let picture = Drawing::of(program, labels);
    let is_used = |kind: &NodeKind| picture.nodes.iter().flatten().any(|node| node.kind == *kind);
    for kind in NodeKind::ALL.into_iter().chain(NodeKind::MARKS.into_iter().filter(is_used)) {
        let (fill, line) = kind.colours();
        _ = writeln!(text, "  classDef {} fill:{fill},stroke:{line},color:#000000", kind.name());
    }
    picture.in_blocks(&mut text, |text, part| match part {
        DrawnItem::Open(id) => {
            _ = writeln!(text, "subgraph block{id}[\"{}\"]", mermaid_text(&(labels.title)(id)));
        }
        DrawnItem::Close => text.push_str("end\n"),
        DrawnItem::Node(node) => {
            let (open, close) = if node.kind.is_op() { ("[", "]") } else { ("([", "])") };
            let label = mermaid_text(&node.label);
            _ = writeln!(text, "  {}{open}\"{label}\"{close}:::{}", node.name, node.kind.name());
        }
    });
    for DrawnEdge { from, to, label, block } in &picture.edges {
        _ = match block {
            Some(_) => writeln!(text, "  {from} -.-> {to}"),
            None if label.is_empty() => writeln!(text, "  {from} --> {to}"),
            None => writeln!(text, "  {from} -->|\"{}\"| {to}", mermaid_text(label)),
        };
    }
    text
}

/// Escapes a Graphviz label, where `&…;` and `\…` have a meaning.
fn dot_text(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        match c {
            '"' | '\\' => escaped.extend(['\\', c]),
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '\n' => escaped.push_str("\\n"),
            c if c.is_control() => escaped.push(char::REPLACEMENT_CHARACTER),
            c => escaped.push(c),
        }
    }
    escaped
}

/// Escapes a Mermaid label: special characters are written as `#number;`.
fn mermaid_text(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        match c {
            '\n' => escaped.push_str("<br/>"),
            c if c.is_alphanumeric() || " _-.@:,+=/()[]".contains(c) => escaped.push(c),
            c if c.is_control() => escaped.push(char::REPLACEMENT_CHARACTER),
            c => _ = write!(escaped, "#{};", u32::from(c)),
        }
    }
    escaped
}

/// The kind of a node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NodeKind {
    Forward,
    Backward,
    Recompute,
    Update,
    Data,
    Parameter,
    Value,
    Queued,
    Next,
    Done,
}

impl NodeKind {
    const MARKS: [NodeKind; 3] = [NodeKind::Queued, NodeKind::Next, NodeKind::Done];

    const ALL: [NodeKind; 7] = [
        NodeKind::Forward,
        NodeKind::Backward,
        NodeKind::Recompute,
        NodeKind::Update,
        NodeKind::Data,
        NodeKind::Parameter,
        NodeKind::Value,
    ];

    fn is_op(self) -> bool {
        matches!(self, NodeKind::Forward | NodeKind::Backward | NodeKind::Recompute | NodeKind::Update)
    }

    fn name(self) -> &'static str {
        match self {
            NodeKind::Forward => "forward",
            NodeKind::Backward => "backward",
            NodeKind::Recompute => "recompute",
            NodeKind::Update => "update",
            NodeKind::Data => "data",
            NodeKind::Parameter => "parameter",
            NodeKind::Value => "value",
            NodeKind::Queued => "queued",
            NodeKind::Next => "next",
            NodeKind::Done => "done",
        }
    }

    /// Fill and line colour.
    fn colours(self) -> (&'static str, &'static str) {
        match self {
            NodeKind::Forward => ("#dbe9f6", "#3b75af"),
            NodeKind::Backward => ("#fde3cc", "#c46a1b"),
            NodeKind::Recompute => ("#e6dcf2", "#7d55a8"),
            NodeKind::Update => ("#d8ecd2", "#4b8b3b"),
            NodeKind::Data => ("#eeeeee", "#777777"),
            NodeKind::Parameter => ("#fff3b8", "#a98600"),
            NodeKind::Value => ("#ffffff", "#aaaaaa"),
            NodeKind::Queued => ("#fde3cc", "#c46a1b"),
            NodeKind::Next => ("#f4a261", "#8a4308"),
            NodeKind::Done => ("#d8ecd2", "#4b8b3b"),
        }
    }
}

struct DrawnNode {
    name: String,
    label: String,
    tooltip: String,
    kind: NodeKind,
}

struct DrawnEdge {
    from: String,
    to: String,
    label: String,
    /// The block, if the arrow goes from an operator to a block that it runs.
    block: Option<usize>,
}

/// A part of the drawing, in the order of the text.
enum DrawnItem<'a> {
    Open(usize),
    Close,
    Node(&'a DrawnNode),
}

struct Drawing<'a> {
    program: &'a Program,
    labels: Labels<'a>,
    /// By block, in the order of first use.
    nodes: Vec<Vec<DrawnNode>>,
    edges: Vec<DrawnEdge>,
    /// By block: the operators that write a variable, in program order.
    writers: Vec<HashMap<Var, Vec<usize>>>,
    /// By block: its parent, and the operator there that runs it.
    outer: Vec<Option<(usize, usize)>>,
    /// The nodes of variables, by block.
    shown: HashMap<(usize, Var), String>,
    /// Outputs that an operator reads.
    read: HashSet<(usize, usize, Var)>,
}

impl<'a> Drawing<'a> {
    fn of(program: &'a Program, labels: Labels<'a>) -> Drawing<'a> {
        let blocks = program.blocks();
        let mut writers: Vec<HashMap<Var, Vec<usize>>> = vec![HashMap::new(); blocks.len()];
        let mut outer: Vec<_> = blocks.iter().map(|b| Some((b.parent?.index(), usize::MAX))).collect();
        for (b, block) in blocks.iter().enumerate() {
            for (i, op) in block.ops.iter().enumerate() {
                op.writes().for_each(|v| writers[b].entry(v).or_default().push(i));
                for inner in op.attrs.blocks().map(BlockId::index).filter(|inner| *inner > b) {
                    if let Some(Some((parent, owner))) = outer.get_mut(inner)
                        && *parent == b
                    {
                        *owner = i;
                    }
                }
            }
        }
        // A parent precedes its blocks.
        outer.iter_mut().enumerate().for_each(|(b, outer)| *outer = outer.filter(|(parent, _)| *parent < b));
        let nodes = blocks.iter().map(|_| vec![]).collect();
        let (shown, read) = (HashMap::new(), HashSet::new());
        let mut picture = Drawing { program, labels, nodes, edges: vec![], writers, outer, shown, read };
        blocks.iter().enumerate().for_each(|(b, block)| picture.block(b, block));
        blocks.iter().enumerate().for_each(|(b, block)| picture.results(b, block));
        picture
    }

    fn block(&mut self, b: usize, block: &Block) {
        let written: HashSet<Var> = block.ops.iter().flat_map(OpDesc::writes).collect();
        for (var, _) in block.vars.iter().filter(|(v, _)| !written.contains(v)) {
            self.variable(b, *var);
        }
        let (mut seeded, blocks) = (false, self.nodes.len());
        for (i, op) in block.ops.iter().enumerate() {
            seeded |= op.origin == Origin::Seed;
            let kept = |v: Var| self.program.lookup(BlockId::new(b), v).is_some_and(|d| d.persistable);
            let kind = match op.origin {
                Origin::Model if seeded && op.writes().any(kept) => NodeKind::Update,
                Origin::Model => NodeKind::Forward,
                Origin::Recompute { .. } => NodeKind::Recompute,
                Origin::Kept
                | Origin::Seed
                | Origin::Gradient { .. }
                | Origin::Accumulate
                | Origin::AllReduce
                | Origin::ZeroFill => NodeKind::Backward,
            };
            let site = op.site.map(|s| format!("\nadded at {s}")).unwrap_or_default();
            let tooltip = format!("{}{site}", self.program.op_text(op));
            let name = format!("op{b}_{i}");
            self.nodes[b].push(DrawnNode {
                name: name.clone(),
                label: format!("{i}: {}", op.ty),
                tooltip,
                kind,
            });
            let mut slots: IndexMap<Var, Vec<&str>> = IndexMap::new();
            for (slot, args) in op.inputs.iter() {
                let vars = args.iter().filter(|v| **v != Var::EMPTY);
                vars.for_each(|v| slots.entry(*v).or_default().push(slot.as_str()));
            }
            let several = op.inputs.iter().filter(|(_, args)| !args.is_empty()).count() > 1;
            for (var, slots) in slots {
                let (from, is_op) = self.source(b, i, var);
                // Variables with a node of their own need no label.
                let label = match (several, is_op) {
                    (true, true) => format!("{} = {}", slots.join(", "), self.label(b, var)),
                    (true, false) => slots.join(", "),
                    (false, true) => self.label(b, var),
                    (false, false) => String::new(),
                };
                self.edges.push(DrawnEdge { from, to: name.clone(), label, block: None });
            }
            for id in op.attrs.blocks().map(BlockId::index).filter(|id| (1..blocks).contains(id)) {
                let (from, to) = (name.clone(), format!("block{id}"));
                self.edges.push(DrawnEdge { from, to, label: String::new(), block: Some(id) });
            }
        }
    }

    /// The node that gives a variable its value where an operator reads it, and whether that node is an operator.
    fn source(&mut self, b: usize, op: usize, var: Var) -> (String, bool) {
        let (mut at, mut before) = (b, op);
        loop {
            let writers = self.writers[at].get(&var).map_or(&[][..], |all| all);
            if let Some(last) = writers[..writers.partition_point(|w| *w < before)].last().copied() {
                self.read.insert((at, last, var));
                if (self.labels.mark)(var).is_some() {
                    let out = self.program.blocks()[at].ops[last].writes().position(|written| written == var);
                    return (format!("op{at}_{last}_out{}", out.unwrap_or_default()), false);
                }
                return (format!("op{at}_{last}"), true);
            }
            // A gradient block reads the inputs and results of its forward block's steps.
            let blocks = self.program.blocks();
            let forward = blocks[at].forward.map(BlockId::index).filter(|forward| *forward < at);
            if let Some(forward) = forward.filter(|_| !blocks[at].vars.contains_key(&var)) {
                if blocks[forward].vars.contains_key(&var) {
                    (at, before) = (forward, usize::MAX);
                    continue;
                }
                if self.writers[forward].contains_key(&var) {
                    (at, before) = (forward, 0);
                    continue;
                }
            }
            match self.outer[at] {
                Some(outer) if !blocks[at].vars.contains_key(&var) => (at, before) = outer,
                _ => return (self.variable(at, var), false),
            }
        }
    }

    /// The node of a variable that no operator has written.
    fn variable(&mut self, b: usize, var: Var) -> String {
        if let Some(name) = self.shown.get(&(b, var)) {
            return name.clone();
        }
        let name = format!("var{}", self.shown.len());
        self.shown.insert((b, var), name.clone());
        self.show(b, var, name.clone(), NodeKind::Data);
        name
    }

    fn show(&mut self, b: usize, var: Var, name: String, otherwise: NodeKind) {
        let desc = self.program.blocks()[b].vars.get(&var);
        let kind = match (self.labels.mark)(var) {
            Some(Mark::Queued) => NodeKind::Queued,
            Some(Mark::Next) => NodeKind::Next,
            Some(Mark::Done) => NodeKind::Done,
            Some(Mark::Waiting) | None => match desc {
                Some(desc) if desc.parameter => NodeKind::Parameter,
                Some(desc) if desc.persistable => NodeKind::Data,
                _ => otherwise,
            },
        };
        let label = self.label(b, var);
        self.nodes[b].push(DrawnNode { name, tooltip: label.clone(), label, kind });
    }

    /// Adds nodes for persistable and marked variables that are written, and for outputs that are not read.
    fn results(&mut self, b: usize, block: &Block) {
        for (i, op) in block.ops.iter().enumerate() {
            for (k, var) in op.writes().enumerate() {
                let kept = block.vars.get(&var).is_some_and(|desc| desc.persistable);
                let is_marked = (self.labels.mark)(var).is_some();
                if kept || is_marked || !self.read.contains(&(b, i, var)) {
                    let (from, to) = (format!("op{b}_{i}"), format!("op{b}_{i}_out{k}"));
                    self.show(b, var, to.clone(), NodeKind::Value);
                    self.edges.push(DrawnEdge { from, to, label: String::new(), block: None });
                }
            }
        }
    }

    /// Name, type and note.
    fn label(&self, b: usize, var: Var) -> String {
        let mut label = self.program.name(var).to_string();
        let ty = self.program.lookup(BlockId::new(b), var).map(|desc| TypeText(desc).to_string());
        for line in ty.into_iter().chain((self.labels.note)(var)) {
            label += "\n";
            label += &line;
        }
        label
    }

    /// Visits the blocks, each inside its parent.
    fn in_blocks(&self, text: &mut String, mut write: impl FnMut(&mut String, DrawnItem<'_>)) {
        let mut inner: Vec<Vec<usize>> = vec![vec![]; self.nodes.len()];
        let mut next: Vec<Option<usize>> = vec![];
        for (b, outer) in self.outer.iter().enumerate().rev() {
            match outer {
                Some((parent, _)) => inner[*parent].push(b),
                None => next.push(Some(b)),
            }
        }
        while let Some(step) = next.pop() {
            let Some(b) = step else {
                write(text, DrawnItem::Close);
                continue;
            };
            if b > 0 {
                write(text, DrawnItem::Open(b));
                next.push(None);
            }
            self.nodes[b].iter().for_each(|node| write(text, DrawnItem::Node(node)));
            next.extend(inner[b].iter().map(|b| Some(*b)));
        }
    }
}
