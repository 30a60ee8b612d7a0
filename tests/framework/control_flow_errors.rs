//! Errors of loops, branches and recurrences name what is wrong, where it is said.

use std::slice::from_ref;

use autobwd::{Builder, DType, Executor, Expr, Feed, Program, Result, Scope, Tensor, verify};
use autobwd_ops::{
    Math,
    control::{StaticRnn, cond, scan, static_rnn, switch_case, while_loop},
};

use crate::support::control_flow::DIMS;

/// The error of a construct, built from a variable of shape `DIMS`; its program has the same error.
fn refused(construct: impl Fn(&Expr) -> Vec<Expr>) -> String {
    let net = Builder::new();
    let found = construct(&net.input("x", DType::F64, &DIMS));
    let e = found[0].check().unwrap_err();
    assert!(found.iter().all(|x| x.check().unwrap_err().to_string() == e.to_string()));
    assert_eq!(net.program().unwrap_err().to_string(), e.to_string());
    e.message().to_string()
}

#[test]
fn invalid_loops_are_refused_at_the_call() {
    let flag = |x: &Expr| x.mean().less_than(&x.mean());
    let e = refused(|x| while_loop(from_ref(x), |_| flag(x), |v| vec![v[0].cast(DType::F32)]));
    assert!(
        e.starts_with("the body of a loop changes dtype or shape of a variable: before it is assign_"),
        "{e}"
    );
    assert!(e.ends_with("after it is cast_0: float32 [2, 2]"), "{e}");
    let e = refused(|x| while_loop(from_ref(x), |_| flag(x), |v| vec![v[0].mean()]));
    assert!(e.contains("float64 [2, 2], after it is mean_"), "{e}");
    let e = refused(|x| while_loop(from_ref(x), |v| v[0].clone(), |v| v.to_vec()));
    assert!(
        e.starts_with("the condition assign_") && e.ends_with("float64 [2, 2] is not a bool of one element"),
        "{e}"
    );
    let e = refused(|x| cond(&flag(x), || vec![x.clone()], || vec![x.mean()]));
    assert!(
        e.starts_with("the branches return different results: a result of the true branch is cond_"),
        "{e}"
    );
    let e = refused(|x| cond(&flag(x), || vec![x.clone()], Vec::new));
    assert_eq!(e, "the branches return different numbers of values: 1 and 0");
    let e = refused(|x| switch_case(&x.mean(), vec![], Box::new(Vec::new)));
    assert!(e.starts_with("the index mean_") && e.ends_with("float64 [] is not an integer"), "{e}");
    let e = refused(|x| cond(x, || vec![x.clone(); 2], Vec::new));
    assert!(e.ends_with("float64 [2, 2] is not a bool of one element"), "{e}");
    let e = while_loop(&[], |_| unreachable!(), |_| unreachable!());
    assert_eq!(e[0].check().unwrap_err().message(), "a loop needs at least one variable");
}

#[test]
fn failed_loops_return_all_their_failed_outputs() {
    let net = Builder::new();
    let x = net.input("x", DType::F64, &DIMS);
    let wrong = x.matmul(&x.sum(&[]));
    let two = || vec![x.clone(); 2];
    assert_eq!(cond(&wrong, two, || vec![x.clone(); 3]).len(), 3);
    assert_eq!(cond(&x.mean().less_than(&x.mean()), || vec![wrong.clone(); 3], two).len(), 3);
    assert_eq!(switch_case(&wrong, vec![(1, Box::new(two))], Box::new(two)).len(), 2);
    assert_eq!(while_loop(&two(), |_| wrong.clone(), |v| v.to_vec()).len(), 2);
    let steps = static_rnn(&net, false, |rnn| {
        let (step, memory) = (rnn.step_input(&wrong), rnn.memory(&x));
        rnn.update_memory(&memory, &step);
        rnn.last_output(&memory);
        rnn.step_output(&step);
    });
    assert_eq!(steps.len(), 2);
    let e = wrong.check().unwrap_err();
    assert!(steps.iter().all(|step| step.check().unwrap_err().message() == e.message()));
    assert_eq!(net.program().unwrap_err().to_string(), e.to_string());
}

#[test]
fn invalid_recurrences_are_refused_at_the_call() {
    let refused = |step: &dyn Fn(&mut StaticRnn, &Expr, &Expr)| {
        let net = Builder::new();
        let x = net.input("x", DType::F64, &[-1, 2]);
        let first = net.input("first", DType::F64, &[2]);
        let found = static_rnn(&net, false, |rnn| step(rnn, &x, &first));
        let e = found[0].check().unwrap_err();
        assert_eq!(net.program().unwrap_err().to_string(), e.to_string());
        e.message().to_string()
    };
    let e = refused(&|rnn, x, _| rnn.step_output(x));
    assert_eq!(e, "a recurrence needs at least one sequence");
    let e = refused(&|rnn, x, _| drop(rnn.step_input(&x.mean())));
    assert!(e.ends_with("float64 [] has no first dimension to iterate over"), "{e}");
    let e = refused(&|rnn, x, _| {
        let sequence = |name, length| x.builder().input(name, DType::F64, &[length]);
        rnn.step_input(&sequence("two", 2));
        rnn.step_input(&sequence("three", 3));
    });
    assert_eq!(e, "three: float64 [3] has 3 steps, but a sequence before it has 2");
    let e = refused(&|rnn, x, first| {
        rnn.step_input(x);
        rnn.memory(first);
    });
    assert_eq!(e, "the memory with initial value first: float64 [2] is never updated; call `update_memory`");
    let e = refused(&|rnn, x, _| {
        let step = rnn.step_input(x);
        rnn.memory(&(step * 2.0));
    });
    assert!(
        e.ends_with("float64 [2] is computed within the step, so it has no value before the first step"),
        "{e}"
    );
    let e = refused(&|rnn, _, first| rnn.update_memory(first, first));
    assert_eq!(e, "first: float64 [2] is not a memory of this recurrence");
    let e = refused(&|rnn, _, first| {
        let memory = rnn.memory(first);
        rnn.update_memory(&memory, &memory.mean());
    });
    assert!(e.starts_with("a step changes dtype or shape of a memory: before it is memory_"), "{e}");
    let e = refused(&|rnn, x, first| {
        rnn.step_input(x);
        let memory = rnn.memory(first);
        rnn.last_output(&memory);
        rnn.update_memory(&memory, first);
    });
    assert!(
        e.ends_with("is not updated before its last value is requested; call `update_memory` first"),
        "{e}"
    );
    let e = refused(&|rnn, x, first| {
        let (step, memory) = (rnn.step_input(x), rnn.memory(first));
        rnn.update_memory(&memory, &step);
        rnn.last_output(first);
    });
    assert_eq!(e, "first: float64 [2] is not a memory of this recurrence");
    let net = Builder::new();
    let (x, first) = (net.input("x", DType::F64, &[-1, 2]), net.input("first", DType::F64, &[2]));
    let e = scan(from_ref(&x), from_ref(&first), false, |x, _| (vec![], x.to_vec()))[0].check().unwrap_err();
    assert_eq!(e.message(), "a step with 1 states returns 0 values");
    let e = scan(&[], &[], false, |_, _| unreachable!())[0].check().unwrap_err();
    assert_eq!(e.message(), "a recurrence needs at least one sequence");
}

#[test]
fn errors_name_all_enclosing_blocks() {
    let net = Builder::new();
    let x = net.input("x", DType::F64, &DIMS);
    let flag = || x.mean().less_than(&x.mean());
    let nested = |v: &Expr| while_loop(from_ref(v), |_| flag(), |v| vec![v[0].matmul(&x.sum(&[]))]);
    let e = cond(&flag(), || nested(&x), || vec![x.clone()])[0].check().unwrap_err();
    let text = e.to_string();
    let lines: Vec<&str> = text.lines().collect();
    let [first, inner, outer] = lines[..] else { panic!("{text}") };
    assert!(first.starts_with("operator `matmul_v2` (block 2, "), "{text}");
    assert!(
        inner.starts_with("  within block 2 in block 1, at ") && inner.contains("control_flow_errors.rs:"),
        "{text}"
    );
    assert!(
        outer.starts_with("  within block 1 in block 0, at ") && outer.contains("control_flow_errors.rs:"),
        "{text}"
    );
    let net = Builder::new();
    let x = net.input("x", DType::F64, &DIMS);
    let e = cond(&x, || vec![x.clone()], || vec![x.clone()])[0].check().unwrap_err().to_string();
    assert!(
        e.contains("is not a bool of one element\n  within block 0, at ")
            && e.contains("control_flow_errors.rs:"),
        "{e}"
    );
}

#[test]
fn errors_in_a_block_name_block_and_line() {
    let net = Builder::new();
    let x = net.input("x", DType::F64, &DIMS);
    let e = while_loop(
        from_ref(&x),
        |v| v[0].mean().less_than(&x.mean()),
        |v| vec![v[0].matmul(&v[0].reshape(&[4, 1]))],
    );
    let e = e[0].check().unwrap_err().to_string();
    assert!(
        e.contains(
            "operator `matmul_v2` (block 1, operator 1, added at tests/framework/control_flow_errors.rs:"
        ),
        "{e}"
    );
}

#[test]
fn loops_in_files_are_verified() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F64, &DIMS);
    let last = while_loop(from_ref(&x), |v| v[0].mean().less_than(&x.mean()), |v| vec![&v[0] + 1.0]);
    let feeds: [(&str, &dyn Feed); 1] = [("x", &Tensor::zeros(DType::F64, &[2, 2])?)];
    let refused = |change: &dyn Fn(&mut Program)| {
        let mut program = net.program().unwrap().clone();
        change(&mut program);
        let verified = verify(&program).map_or_else(|e| e.to_string(), |()| String::new());
        let run = Executor::new().run(&program, &mut Scope::new(), &feeds, &[&last[0].name()]);
        (verified, run.map_or_else(|e| e.to_string(), |_| String::new()))
    };
    assert_eq!(refused(&|_| {}), (String::new(), String::new()));
    let at = "operator `while` (block 0, operator 5, added at tests/framework/control_flow_errors.rs:";
    let loop_of = |p: &mut Program| p.root_mut().ops.iter_mut().position(|op| op.ty == "while").unwrap_or(0);
    // A condition that is not a bool.
    let (verified, run) = refused(&|p| {
        let i = loop_of(p);
        let x = p.expect_var("x").expect("it is there");
        p.root_mut().ops[i].inputs.set("Condition", [x]);
    });
    assert!(
        verified.starts_with(at)
            && verified.contains("the condition `x` is float64 [2, 2], not a bool of one element"),
        "{verified}"
    );
    assert!(run.contains("the condition `x` is float64 [2, 2], not a bool of one element"), "{run}");
    // A body that reads a variable that is not an input.
    let (verified, run) = refused(&|p| {
        let i = loop_of(p);
        let kept: Vec<_> = p.root().ops[i].outputs.get("Out").to_vec();
        p.root_mut().ops[i].inputs.set("X", kept);
    });
    for e in [&verified, &run] {
        assert!(
            e.contains(at) && e.contains("`x` is read in block 1, but it is not among the inputs"),
            "{e}"
        );
    }
    // A body that never changes the condition.
    let (_, run) = refused(&|p| {
        let i = loop_of(p);
        let id = p.root().ops[i].attrs.blocks().next();
        let body = id.and_then(|id| p.block_mut(id)).expect("it is there");
        body.ops.pop();
    });
    assert!(
        run.contains("the body never changes the condition `assign_1`, so the loop would not end"),
        "{run}"
    );
    Ok(())
}
