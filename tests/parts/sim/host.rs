//! A machine whose processes are tasks: real pipes, a keeper that obeys its orders, and children
//! that are [`Agent`]s.

use std::sync::Arc;
use std::time::Duration;

use marshal_config::StopTimeouts;
use marshal_launch::{
    BoxFuture, Child, ChildExit, Host, KeeperHandle, KeeperOrder, LaunchPlan, ProgramOutput,
    RunError, SpawnError, Step,
};
use marshal_model::ExitStatus;
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, oneshot};

use crate::sim::agent::{Agent, Wires};
use crate::sim::ledger::Ledger;
use crate::sim::random::SeededRandom;
use crate::sim::world::{Twist, Wildness};

#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) seed: u64,
    pub(crate) wildness: Wildness,
    pub(crate) twist: Twist,
}

impl Host for Machine {
    fn start(&self, plan: LaunchPlan, _: StopTimeouts) -> BoxFuture<'_, Result<Child, SpawnError>> {
        Box::pin(async move {
            let number = self.ledger.book().seen.get("start").copied().unwrap_or(0);
            self.ledger.saw("start");
            let mut random = SeededRandom::new(self.seed, 1_000_000 + number);
            tokio::time::sleep(random.ms(2_000)).await;
            if self.wildness.percent(&mut random, 4) {
                self.ledger.saw("no process");
                self.ledger.step("no process");
                let error = std::io::Error::from(std::io::ErrorKind::WouldBlock);
                return Err(SpawnError::Fork(error));
            }
            Ok(self.bear(&plan, random))
        })
    }

    fn run_to_end(
        &self,
        _: LaunchPlan,
        timeout: Duration,
        _: usize,
    ) -> BoxFuture<'_, Result<ProgramOutput, RunError>> {
        Box::pin(async move {
            let number = self.ledger.book().seen.get("check").copied().unwrap_or(0);
            self.ledger.saw("check");
            let mut random = SeededRandom::new(self.seed, 2_000_000 + number);
            tokio::time::sleep(random.ms(20_000)).await;
            if self.wildness.percent(&mut random, 5) {
                tokio::time::sleep(timeout).await;
                return Err(RunError::TimedOut {
                    output: Vec::new(),
                    program: "check".to_owned(),
                    after: timeout,
                });
            }
            let code = i32::from(random.percent(30));
            self.ledger.step(&format!("the check ends with {code}"));
            Ok(ProgramOutput {
                status: ExitStatus::Code(code),
                stdout: b"checked\n".to_vec(),
                stderr: Vec::new(),
                is_truncated: false,
                limit_enforcement: None,
            })
        })
    }
}

fn pair() -> (pipe::Receiver, pipe::Sender) {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).expect("a pipe");
    (
        pipe::Receiver::from_owned_fd(read).expect("a pipe"),
        pipe::Sender::from_owned_fd(write).expect("a pipe"),
    )
}

impl Machine {
    fn bear(&self, plan: &LaunchPlan, mut random: SeededRandom) -> Child {
        // A session's home has its name.
        let home = plan.env.iter().find(|(name, _)| name == "HOME");
        let home = home.map_or("", |(_, path)| path.as_str());
        let session = home.rsplit('/').next().unwrap_or_default();
        let number = self.ledger.born(session);
        let (stdin, to_stdin) = pair();
        let (from_stdout, stdout) = pair();
        let (from_stderr, stderr) = pair();
        let (signal, signals) = mpsc::channel(8);
        let (keeper, mut orders) = KeeperHandle::with_orders();
        let (sender, ended) = oneshot::channel();
        let stdout = Arc::new(stdout);
        let wires = Wires {
            stdin,
            stdout: Some(Arc::clone(&stdout)),
            stderr: Some(stderr),
            signals,
        };
        let agent = Agent::new(self, number, session, &plan.argv, &mut random, wires);
        // Somebody else may hold the pipe for a while, as a process that cannot be killed would.
        let held = self.wildness.percent(&mut random, 2);
        let held = held.then(|| (stdout, random.ms(10_000)));
        let lingers = random.ms(100);
        let (ledger, twist) = (Arc::clone(&self.ledger), self.twist);
        let mut process = tokio::spawn(agent.run());
        tokio::spawn(async move {
            let (status, forced) = loop {
                tokio::select! {
                    biased;
                    status = &mut process => break (status.expect("an agent does not fail"), false),
                    order = orders.next() => match order {
                        KeeperOrder::Signal(Step::Kill) | KeeperOrder::From(Step::Kill) | KeeperOrder::Kill => {
                            tokio::time::sleep(lingers).await;
                            process.abort();
                            let _ = (&mut process).await;
                            break (ExitStatus::Signal(9), true);
                        }
                        KeeperOrder::Signal(step) | KeeperOrder::From(step) => {
                            let _ = signal.try_send(step);
                        }
                    },
                }
            };
            if let Some((stdout, time)) = held {
                ledger.saw("a pipe held by somebody else");
                tokio::spawn(async move {
                    tokio::time::sleep(time).await;
                    drop(stdout);
                });
            }
            // Broken on purpose: its end is told, and it is not gone.
            if twist != Twist::Immortal {
                ledger.died(number, &status.to_string());
            }
            let _ = sender.send(ChildExit {
                status: Some(status),
                sandbox_failure: None,
                is_forced: forced,
                survivors_killed: 0,
                survivors_left: 0,
                group_outcome: None,
            });
        });
        Child {
            sandbox_entry: None,
            limits: String::new(),
            group: None,
            pid: u32::try_from(number).unwrap_or(0) + 1,
            stdin: to_stdin,
            stdout: from_stdout,
            stderr: from_stderr,
            keeper,
            exit: ended,
            notes: Vec::new(),
            listeners: Vec::new(),
            sandbox_layers: Vec::new(),
        }
    }
}
