"""`cfp.plan` and `cfp.compare` are made of these files, between the search and the command line.

options       what one may ask of `cfp.plan`, in one value that the commands share
arrange       one call of a jitted step: its data, and what belongs to the program
kept          plans that `cfp.jit` made, kept beside the measurements
leading       the options of the plans that lead while segments are measured
proposals     the search's answers as plans, with what is predicted of them
audit         full steps under plans, run on the devices, and what they show
tried         proposals whose steps were measured, and the best of them
choose        from proposals to one plan: their steps decide
check         whether a plan still fits its step
evidence      the numbers that justify a plan, and where planning spends its time
compare       plans measured against each other
scaling       one step planned for several numbers of devices
"""
