//! Gradient operators of the reference are registered with its slots, so that its training programs load.

use std::fs;

use autobwd::{
    OpInfoMap, Result,
    op::{Arity, GradKind, OpInfo, SlotDef},
};

use crate::support::is_of_library;

/// Gradient operators that are not registered with the slots of the reference, with reasons: `_grad` stands for all those
/// of gradient operators.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("_grad", "gradients of gradients are composed of other operators, and exist to any order"),
    ("meshgrid", "`autobwd-paddle` renames its slot `outputs@GRAD`"),
];

/// `operator: gradient operator: inputs -> outputs`.
struct Gradient<'a> {
    of: &'a str,
    ty: &'a str,
    inputs: Vec<&'a str>,
    outputs: Vec<&'a str>,
}

impl Gradient<'_> {
    fn read(line: &str) -> Option<Gradient<'_>> {
        let (of, rest) = line.split_once(": ")?;
        let (ty, slots) = rest.split_once(": ")?;
        let (inputs, outputs) = slots.split_once(" -> ")?;
        Some(Gradient { of, ty, inputs: inputs.split(' ').collect(), outputs: outputs.split(' ').collect() })
    }

    /// What keeps a file with it from being loaded.
    fn obstacles(&self, forward: &OpInfo, infos: &[&'static OpInfo]) -> Vec<String> {
        let derived = match forward.grad_kind() {
            GradKind::Derived(info) => Some(info),
            _ => None,
        };
        let own = infos.iter().copied().chain(derived).find(|info| info.schema().name == self.ty);
        let Some(own) = own.map(OpInfo::schema) else { return vec!["it is not registered".into()] };
        let mut found = vec![];
        // An input that the forward operator lacks is refused there; outputs of that are computed from its inputs.
        let is_read = |slot: &str| {
            own.input(slot).is_some()
                || forward.schema().output(slot).is_some()
                || (!slot.ends_with("@GRAD") && forward.schema().input(slot).is_none())
        };
        let missing = self.inputs.iter().filter(|slot| !is_read(slot));
        found.extend(missing.map(|slot| format!("it does not read `{slot}`")));
        let missing = self.outputs.iter().filter(|slot| own.output(slot).is_none());
        found.extend(missing.map(|slot| format!("it does not write `{slot}`")));
        let needed = |slots: &'static [SlotDef], given: &[&str]| {
            let needed = slots.iter().filter(|slot| matches!(slot.arity, Arity::One));
            let given: Vec<String> = given.iter().map(|slot| slot.to_string()).collect();
            needed.filter(move |slot| !given.iter().any(|given| given == slot.name)).map(|slot| slot.name)
        };
        found.extend(needed(own.inputs, &self.inputs).map(|slot| format!("it needs `{slot}`")));
        found.extend(needed(own.outputs, &self.outputs).map(|slot| format!("it must write `{slot}`")));
        found
    }
}

#[test]
fn all_are_registered_with_its_slots() -> Result<()> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/reference_gradients.txt");
    let text = fs::read_to_string(path).unwrap();
    let infos: Vec<_> = OpInfoMap::linked()?.iter().filter(|info| is_of_library(info)).collect();
    let gradients: Vec<Gradient<'_>> =
        text.lines().filter(|line| !line.starts_with('#')).filter_map(Gradient::read).collect();
    assert!(gradients.len() > 150);
    let mut excepted = vec![];
    for gradient in &gradients {
        let exception = EXCEPTIONS.iter().find(|(of, _)| gradient.of.ends_with(of));
        let forward = infos.iter().find(|info| info.schema().name == gradient.of);
        let obstacles = match forward {
            Some(forward) => gradient.obstacles(forward, &infos),
            None => vec![format!("`{}` is not registered", gradient.of)],
        };
        match exception {
            Some((of, _)) if !obstacles.is_empty() => excepted.push(*of),
            _ => assert!(obstacles.is_empty(), "`{}`: {}", gradient.ty, obstacles.join(", ")),
        }
    }
    for (of, reason) in EXCEPTIONS {
        assert!(excepted.contains(of), "`{of}` is no exception any more: {reason}");
    }
    let is_known = |of: &&str| of.ends_with("_grad") || gradients.iter().any(|gradient| gradient.of == *of);
    let own = infos.iter().filter_map(|info| info.schema().name.strip_suffix("_grad"));
    let unknown: Vec<&str> = own.filter(|of| !is_known(of)).collect();
    assert_eq!(unknown, WITHOUT, "update {path}");
    Ok(())
}

/// Operators whose gradient operator the reference lacks, or makes only of an operator in a program.
const WITHOUT: &[&str] = &[
    "conditional_block",
    "ctc_loss",
    "elementwise_mod",
    "linear_cross_entropy",
    "lstm_sequence",
    "recurrent",
    "scaled_dot_product_attention",
    "while",
];
