//! The difference of two programs as text, by matched operators.

use std::{
    collections::{BTreeSet, HashMap},
    fmt, mem,
};

use super::{
    Attr, Block, BlockId, Name, OpDesc, Origin, Program, Slots, Var, VarDesc,
    op_matching::{OpMatching, match_ops},
    text::TypeText,
};

/// The difference of two programs as text, one line per variable or operator; empty if they are equal.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Diff {
    lines: Vec<String>,
}

impl Diff {
    /// Whether there is no difference.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }
}
impl fmt::Display for Diff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines.join("\n"))
    }
}

/// The changes that turn `old` into `new`: `-` removes, `+` adds, `~` changes and `>` moves. Operators are identified
/// by the variables they write, variables by their names; source lines are not compared.
///
/// ```
/// # use autobwd::{Builder, DType, Result};
/// # use autobwd_ops::Math;
/// use autobwd::program::diff;
///
/// let net = |slope: f64| -> Result<Builder> {
///     let net = Builder::new();
///     (net.input("x", DType::F32, &[4]) * slope).exp();
///     Ok(net)
/// };
/// let (old, new) = (net(2.0)?, net(3.0)?);
/// new.expr("exp_0").tanh();
/// assert!(diff(&*old.program()?, &*old.program()?).is_empty());
/// assert_eq!(
///     diff(&*old.program()?, &*new.program()?).to_string(),
///     "block 0
///   + tanh_0: float32 [4]
///   ~ operator 0, which writes scale_0: scale: 2.0 -> 3.0
///   + operator 2: tanh_0 = tanh(X=exp_0)"
/// );
/// # Ok::<(), autobwd::Error>(())
/// ```
pub fn diff(old: &Program, new: &Program) -> Diff {
    let (none, ids) = (Block::default(), 0..old.blocks().len().max(new.blocks().len()));
    let blocks: Vec<(&Block, &Block)> = ids
        .clone()
        .map(|i| (old.blocks().get(i).unwrap_or(&none), new.blocks().get(i).unwrap_or(&none)))
        .collect();
    let matchings = match_ops(old, new);
    let mut diff = Diff::default();
    for i in ids {
        let mut compare = Compare { old, new, matchings: &matchings, id: BlockId::new(i), lines: vec![] };
        let (a, b) = blocks[i];
        compare.headers(a, b);
        compare.vars(a, b);
        compare.ops(a, b);
        let mark = match (old.blocks().get(i), new.blocks().get(i)) {
            (Some(_), None) => "- ",
            (None, _) => "+ ",
            _ if compare.lines.is_empty() => continue,
            _ => "",
        };
        diff.lines.push(format!("{mark}block {i}"));
        diff.lines.append(&mut compare.lines);
    }
    diff
}

struct Compare<'a> {
    old: &'a Program,
    new: &'a Program,
    /// By block.
    matchings: &'a [OpMatching],
    id: BlockId,
    lines: Vec<String>,
}

/// `` what: a -> b ``, if they differ.
fn change<T: PartialEq + fmt::Display>(what: impl fmt::Display, a: T, b: T) -> Option<String> {
    (a != b).then(|| format!("{what}: {a} -> {b}"))
}

fn names(program: &Program, args: &[Var]) -> String {
    match args {
        [one] => program.name(*one).into(),
        many => format!("[{}]", many.iter().map(|v| program.name(*v)).collect::<Vec<_>>().join(", ")),
    }
}

impl Compare<'_> {
    fn headers(&mut self, a: &Block, b: &Block) {
        let text = |id: Option<BlockId>| id.map_or("none".into(), |id| id.index().to_string());
        let changes = [("parent", a.parent, b.parent), ("gradient of block", a.forward, b.forward)]
            .map(|(what, a, b)| change(what, text(a), text(b)));
        self.lines.extend(changes.into_iter().flatten().map(|change| format!("  ~ {change}")));
    }

    fn vars(&mut self, a: &Block, b: &Block) {
        let (old, new) = (self.old, self.new);
        let find = |var: Var, from: &Program, to: &Program| to.find(from.name(var));
        let places: HashMap<Var, usize> = b.vars.keys().enumerate().map(|(i, v)| (*v, i)).collect();
        let mut stay = vec![];
        for (var, desc) in a.vars.iter() {
            match find(*var, old, new).and_then(|v| Some((places.get(&v)?, b.vars.get(&v)?))) {
                None => self.lines.push(format!("  - {}: {}", old.name(*var), TypeText(desc))),
                Some((place, other)) => {
                    stay.push(place);
                    let changes = self.var_changes(desc, other);
                    if !changes.is_empty() {
                        self.lines.push(format!("  ~ {}: {}", old.name(*var), changes.join(", ")));
                    }
                }
            }
        }
        for (var, desc) in b.vars.iter() {
            if find(*var, new, old).is_none_or(|v| !a.vars.contains_key(&v)) {
                self.lines.push(format!("  + {}: {}", new.name(*var), TypeText(desc)));
            }
        }
        if !stay.is_sorted() {
            self.lines.push("  > variables stand in another order".into());
        }
    }

    fn var_changes(&self, a: &VarDesc, b: &VarDesc) -> Vec<String> {
        let of =
            |program: &Program, of: Option<Var>| of.map_or("none".into(), |v| program.name(v).to_string());
        let (old, new) = (TypeText(a).to_string(), TypeText(b).to_string());
        // The text of some kinds leaves out dtype and shape.
        let meta = |desc: &VarDesc| format!("{} {}", desc.dtype, desc.dims);
        let changes = [
            if old != new { Some(format!("{old} -> {new}")) } else { change("holds", meta(a), meta(b)) },
            change("parameter", a.parameter, b.parameter),
            change("persistable", a.persistable, b.persistable),
            change("stop_gradient", a.stop_gradient, b.stop_gradient),
            change("gradient of", of(self.old, a.gradient_of), of(self.new, b.gradient_of)),
        ];
        changes.into_iter().flatten().collect()
    }

    fn ops(&mut self, a: &Block, b: &Block) {
        let matching = &self.matchings[self.id.index()];
        let mut from = (0, 0);
        for (i, j) in matching.in_order.iter().copied().chain([(a.ops.len(), b.ops.len())]) {
            for gone in (from.0..i).filter(|i| matching.to_new[*i].is_none()) {
                self.lines.push(format!("  - operator {gone}: {}", self.old.op_text(&a.ops[gone])));
            }
            for j in from.1..j {
                let op = &b.ops[j];
                match matching.to_old[j] {
                    None => self.lines.push(format!("  + operator {j}: {}", self.new.op_text(op))),
                    Some(i) => {
                        self.lines
                            .push(format!("  > operator {j}: {}, was operator {i}", self.new.op_text(op)));
                        self.op(j, &a.ops[i], op, b);
                    }
                }
            }
            if let (Some(old), Some(new)) = (a.ops.get(i), b.ops.get(j)) {
                self.op(j, old, new, b);
            }
            from = (i + 1, j + 1);
        }
    }

    fn op(&mut self, index: usize, a: &OpDesc, b: &OpDesc, block: &Block) {
        let (old, new) = (self.old, self.new);
        let mut changes: Vec<String> = change("type", a.ty, b.ty).into_iter().collect();
        for (a, b) in [(&a.inputs, &b.inputs), (&a.outputs, &b.outputs)] {
            let slots: BTreeSet<_> = a.iter().chain(b.iter()).map(|(slot, _)| slot).collect();
            let text = |program: &Program, slots: &Slots, slot: &Name| {
                let own = slots.iter().find(|(name, _)| name == slot);
                own.map_or("none".into(), |(_, args)| names(program, args))
            };
            changes
                .extend(slots.iter().filter_map(|slot| change(slot, text(old, a, slot), text(new, b, slot))));
        }
        let attrs: BTreeSet<_> = a.attrs.iter().chain(b.attrs.iter()).map(|(name, _)| name).collect();
        changes
            .extend(attrs.iter().filter_map(|name| attr_change(name, a.attrs.get(name), b.attrs.get(name))));
        if !self.same_origin(a.origin, b.origin, block) {
            let text = |program: &Program, origin: Origin| match origin {
                Origin::Gradient { of } => {
                    let forward = program.block(block.forward.unwrap_or(self.id)).and_then(|b| b.ops.get(of));
                    format!("gradient of operator {of} `{}`", forward.map_or("", |op| op.ty.as_str()))
                }
                other => format!("{other:?}"),
            };
            changes.push(format!("origin: {} -> {}", text(old, a.origin), text(new, b.origin)));
        }
        if !changes.is_empty() {
            let written: Vec<Var> = b.writes().collect();
            let what = format!("operator {index}, which writes {}", names(new, &written));
            self.lines.push(format!("  ~ {what}: {}", changes.join(", ")));
        }
    }

    /// Whether two operators have the same origin: both are gradients of the same operator, even if that has moved.
    fn same_origin(&self, a: Origin, b: Origin, block: &Block) -> bool {
        match (a, b) {
            (Origin::Gradient { of: a }, Origin::Gradient { of: b }) => {
                let forward = self.matchings.get(block.forward.unwrap_or(self.id).index());
                forward.and_then(|matching| *matching.to_new.get(a)?).map_or(a == b, |moved| moved == b)
            }
            _ => a == b,
        }
    }
}

fn attr_change(name: &str, a: Option<&Attr>, b: Option<&Attr>) -> Option<String> {
    let text = |attr: Option<&Attr>| attr.map_or("none".into(), Attr::to_string);
    match change(name, text(a), text(b)) {
        // The types differ.
        None if a.map(mem::discriminant) != b.map(mem::discriminant) => {
            Some(format!("{name}: {a:?} -> {b:?}"))
        }
        change => change,
    }
}
