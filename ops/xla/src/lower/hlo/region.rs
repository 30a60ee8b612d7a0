//! Operations with regions: loops, branches, sorting.

use autobwd::__private::internals::*;
use autobwd::Error;

use super::{
    Hlo, HloDType, HloFunction, HloType,
    types::{list, results},
};

/// A loop whose body is being written; states may be added until the body ends.
pub(crate) struct WhileText {
    f: HloFunction,
    states: Vec<Hlo>,
}

/// A loop with a body.
pub(crate) struct WhileBody {
    f: HloFunction,
    states: Vec<Hlo>,
    body: String,
}

impl WhileText {
    pub(crate) fn begin(f: &HloFunction) -> WhileText {
        f.begin_region();
        WhileText { f: f.clone(), states: vec![] }
    }

    /// A state, in the body and in the condition.
    pub(crate) fn state(&mut self, ty: &HloType) -> Hlo {
        let state = self.f.argument(ty.clone());
        self.states.push(state.clone());
        state
    }

    /// Ends the body with the next values of the states.
    pub(crate) fn end_body(self, next: &[Hlo]) -> WhileBody {
        if next.iter().map(Hlo::ty).ne(self.states.iter().map(Hlo::ty)) {
            self.f.fail(Error::internal("a loop changes the type of its state"));
        }
        let body = self.f.end_region(next);
        WhileBody { f: self.f, states: self.states, body }
    }

    /// Removes the body.
    pub(crate) fn abandon(self) {
        self.f.end_region(&[]);
    }
}

impl WhileBody {
    /// Appends the loop; returns the last values of the states.
    pub(crate) fn finish(self, first: &[Hlo], condition: impl FnOnce(&[Hlo]) -> Hlo) -> Vec<Hlo> {
        let WhileBody { f, states, body } = self;
        let Some(of) = first.first() else { return vec![] };
        if first.iter().map(Hlo::ty).ne(states.iter().map(Hlo::ty)) {
            of.fail("a loop begins with states of other types");
        }
        let outer = f.indentation();
        f.begin_region();
        let holds = condition(&states);
        let condition = f.end_region(&[holds]);
        let types: Vec<HloType> = first.iter().map(|value| value.ty.clone()).collect();
        let pairs = list(states.iter().zip(first).map(|(state, first)| format!("{state} = {first}")));
        let text = format!(
            "stablehlo.while({pairs}) : {}\n{outer}cond {{\n{condition}{outer}}} do {{\n{body}{outer}}}",
            list(&types)
        );
        of.emit_all(types, text)
    }
}

impl Hlo {
    /// The text of a region with arguments: `({ ^bb0(%1: tensor<f32>): … })`, without the parentheses.
    pub(super) fn region(&self, types: &[HloType], write: impl FnOnce(&[Hlo]) -> Vec<Hlo>) -> String {
        let arguments: Vec<Hlo> = types.iter().map(|ty| self.f.argument(ty.clone())).collect();
        let outer = self.f.indentation();
        self.f.begin_region();
        let results = write(&arguments);
        let body = self.f.end_region(&results);
        let declared: Vec<String> = arguments.iter().map(|value| format!("{value}: {}", value.ty)).collect();
        match &declared[..] {
            [] => format!("{{\n{body}{outer}}}"),
            declared => format!("{{\n{outer}^bb0({}):\n{body}{outer}}}", declared.join(", ")),
        }
    }

    /// A region that combines two scalars.
    pub(super) fn combiner(&self, dtype: HloDType, combine: impl FnOnce(&Hlo, &Hlo) -> Hlo) -> String {
        let scalar = HloType::scalar(dtype);
        self.region(&[scalar.clone(), scalar], |args| vec![combine(&args[0], &args[1])])
    }

    /// Repeats `body` while `condition` holds. Both may use values from outside.
    pub fn while_loop(
        first: &[Hlo],
        condition: impl FnOnce(&[Hlo]) -> Hlo,
        body: impl FnOnce(&[Hlo]) -> Vec<Hlo>,
    ) -> Vec<Hlo> {
        let Some(of) = first.first() else { return vec![] };
        let mut text = WhileText::begin(&of.f);
        let states: Vec<Hlo> = first.iter().map(|value| text.state(value.ty())).collect();
        let next = body(&states);
        text.end_body(&next).finish(first, condition)
    }

    /// The results of `yes` if this bool is true, of `no` otherwise. Both may use values from outside.
    pub fn branch(&self, yes: impl FnOnce() -> Vec<Hlo>, no: impl FnOnce() -> Vec<Hlo>) -> Vec<Hlo> {
        let mut types = vec![];
        let yes = self.region(&[], |_| {
            let results = yes();
            types = results.iter().map(|value| value.ty.clone()).collect();
            results
        });
        let no = self.region(&[], |_| {
            let results = no();
            if results.iter().map(Hlo::ty).ne(&types) {
                self.fail("the branches of a condition have results of different types");
            }
            results
        });
        let text = format!("\"stablehlo.if\"({self}) ({yes}, {no}) : ({}) -> {}", self.ty, results(&types));
        self.emit_all(types, text)
    }

    /// These values sorted together along an axis, stably; `before` compares two elements of each, which are given as
    /// pairs.
    pub fn sort(values: &[Hlo], axis: usize, before: impl FnOnce(&[(Hlo, Hlo)]) -> Hlo) -> Vec<Hlo> {
        let Some(of) = values.first() else { return vec![] };
        let scalars: Vec<HloType> =
            values.iter().flat_map(|v| [HloType::scalar(v.dtype()), HloType::scalar(v.dtype())]).collect();
        let body = of.region(&scalars, |args| {
            let pairs: Vec<(Hlo, Hlo)> =
                args.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
            vec![before(&pairs)]
        });
        let types: Vec<HloType> = values.iter().map(|value| value.ty.clone()).collect();
        let text = format!(
            "\"stablehlo.sort\"({}) <{{dimension = {axis} : i64, is_stable = true}}> ({body}) : ({}) -> {}",
            list(values),
            list(&types),
            results(&types)
        );
        of.emit_all(types, text)
    }
}
