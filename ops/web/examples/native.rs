//! Trains natively, on all cores, as the page does in a browser.
//!
//! ```text
//! cargo run --release -p autobwd-web --example native
//! ```
//!
//! Prints a JSON object: the loss of each step, the test accuracy at the end, and a hash of the weights. `ops/web/test`
//! compares them with a run in a browser.

use autobwd_web::{Failure, Trainer};
use serde_json::json;

fn main() -> Result<(), Failure> {
    let (mut trainer, mut losses) = (Trainer::new(0)?, vec![]);
    while trainer.epoch() < trainer.epochs() {
        losses.extend(trainer.step()?);
    }
    println!("{}", json!({ "losses": losses, "accuracy": trainer.accuracy()?, "hash": trainer.hash() }));
    Ok(())
}
