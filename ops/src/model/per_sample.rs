//! Gradients of every sample of a batch.

use autobwd::{Error, ErrorKind, Executor, Feed, Meta, OpInfoMap, Program, Result, Scope, Tensor};

use super::{VectorizedProgram, vmap};

/// Computes the fetched values of every row of the feeds by itself: with gradients as fetches, these are the gradients of
/// every sample, `[n, ..]` for a parameter of shape `[..]`.
///
/// All rows are computed together, by the program of [`vmap`], so that memory grows with the rows. A program that `vmap`
/// refuses, such as one with control flow, runs row by row.
///
/// The program has no updates: take it after [`compute_gradients`](crate::optim::compute_gradients), before
/// [`apply_gradients`](crate::optim::Optimizer::apply_gradients).
///
/// ```
/// use autobwd::{Backward, Builder, DType, Executor, Scope, Tensor};
/// use autobwd_ops::{Init, Math, model::per_sample, optim::compute_gradients};
/// let net = Builder::new();
/// let x = net.input("x", DType::F32, &[-1, 2]);
/// let w = net.parameter("w", DType::F32, &[2, 1], |w| Init::Constant(1.0).emit(w, 0));
/// let loss = x.matmul(&w).square().mean();
/// let gradient = compute_gradients(&loss, &Backward::default())?.complete()?[0].1.name();
/// let (mut executor, mut scope) = (Executor::new(), Scope::new());
/// executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
/// let x = Tensor::from_vec([2, 2], vec![1.0_f32, 2.0, 3.0, 4.0])?;
/// let found = per_sample(&mut executor, &*net.program()?, &mut scope, &[("x", &x)], &[&gradient])?;
/// assert_eq!(found[0].dims(), [2, 2, 1]);
/// assert_eq!(found[0].slice::<f32>()?, [6.0, 12.0, 42.0, 56.0]); // 2 · (x · w) · x
/// # Ok::<(), autobwd::Error>(())
/// ```
///
/// # Errors
/// A feed without rows, or with more rows than another; those of [`Executor::prepare`] and of the run.
pub fn per_sample(
    executor: &mut Executor,
    program: &Program,
    scope: &mut Scope,
    feeds: &[(&str, &Tensor)],
    fetches: &[&str],
) -> Result<Vec<Tensor>> {
    let (count, metas) = rows(feeds)?;
    let ops = OpInfoMap::linked()?;
    // Shapes that are still unknown, or that data decides, are known in the run of one row.
    let refused = |e: &Error| matches!(e.kind(), ErrorKind::Unsupported | ErrorKind::Shape);
    match vmap(program, ops, count, &metas, fetches) {
        Ok(all) => together(executor, &all, scope, feeds),
        Err(e) if refused(&e) => row_by_row(executor, program, scope, feeds, fetches),
        Err(e) => Err(e),
    }
}

/// The number of rows, and the dtypes and shapes of a row.
fn rows<'n>(feeds: &[(&'n str, &Tensor)]) -> Result<(usize, Vec<(&'n str, Meta)>)> {
    let refuse = |text: String| Err(Error::new(ErrorKind::Feed, text));
    let Some(count) = feeds.first().and_then(|(_, feed)| feed.dims().first().copied()) else {
        return refuse("per-sample values need a feed with rows".into());
    };
    let mut metas = vec![];
    for (name, feed) in feeds {
        match feed.dims() {
            [own, rest @ ..] if *own == count && count > 0 => {
                metas.push((*name, Meta::new(feed.dtype(), &*[&[1], rest].concat())));
            }
            _ => return refuse(format!("`{name}` is {}, but {count} rows are needed", feed.meta())),
        }
    }
    Ok((count, metas))
}

fn together(
    executor: &mut Executor,
    all: &VectorizedProgram,
    scope: &mut Scope,
    feeds: &[(&str, &Tensor)],
) -> Result<Vec<Tensor>> {
    let is_needed =
        |name: &str| all.program.find(name).is_some_and(|var| all.program.root().vars.contains_key(&var));
    let mut rows: Vec<(&str, Tensor)> = vec![];
    for (name, feed) in feeds.iter().filter(|(name, _)| is_needed(name)) {
        // Each sample is a batch of one row.
        let dims = [&feed.dims()[..1], &[1], &feed.dims()[1..]].concat();
        let mut row = Tensor::zeros(feed.dtype(), &dims)?;
        row.bytes_mut().copy_from_slice(feed.bytes());
        rows.push((name, row));
    }
    let feeds: Vec<(&str, &dyn Feed)> = rows.iter().map(|(name, row)| (*name, row as &dyn Feed)).collect();
    let fetches: Vec<&str> = all.fetches.iter().map(String::as_str).collect();
    executor.run(&all.program, scope, &feeds, &fetches)
}

fn row_by_row(
    executor: &mut Executor,
    program: &Program,
    scope: &mut Scope,
    feeds: &[(&str, &Tensor)],
    fetches: &[&str],
) -> Result<Vec<Tensor>> {
    let (count, metas) = rows(feeds)?;
    let mut session = executor.prepare(program, scope, &metas, fetches)?;
    let of_one = |feed: &Tensor| Tensor::zeros(feed.dtype(), &[&[1], &feed.dims()[1..]].concat());
    let mut rows = feeds.iter().map(|(name, feed)| Ok((*name, of_one(feed)?))).collect::<Result<Vec<_>>>()?;
    let mut stacked: Vec<Tensor> = vec![];
    for sample in 0..count {
        for ((name, row), (_, feed)) in rows.iter_mut().zip(feeds) {
            let bytes = row.bytes().len();
            row.bytes_mut().copy_from_slice(&feed.bytes()[sample * bytes..][..bytes]);
            session.feed(name, &*row)?;
        }
        session.run(scope)?;
        for (i, name) in fetches.iter().enumerate() {
            let value = session.fetch(name)?;
            if sample == 0 {
                let dims: Vec<usize> = [count].iter().chain(value.dims()).copied().collect();
                stacked.push(Tensor::zeros(value.dtype(), &dims)?);
            }
            let bytes = value.bytes().len();
            stacked[i].bytes_mut()[sample * bytes..][..bytes].copy_from_slice(value.bytes());
        }
    }
    Ok(stacked)
}
